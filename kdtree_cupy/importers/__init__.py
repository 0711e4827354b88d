"""Read what people already have: measured acceptance of other systems, for overlays and tables.

============================ =========================================== ==================================
file                         what is in it                               convention, and what is done
============================ =========================================== ==================================
DDTree ``runs/*.pt``         tokens of every round of every response     bonus counted: taken as it is
SGLang responses             ``spec_accept_histogram[n]``: n drafts      bonus not counted: one is added
vLLM, AIPerf responses       ``acceptance_histogram``: n drafts          bonus not counted: one is added
EAGLE, Medusa answers JSONL  ``idxs``, ``new_tokens`` per turn           idx is the last step: rounds are +1
JetSpec profile JSON         ``depth_rank_accept[depth][rank]``          a table for static and fan_out
============================ =========================================== ==================================

Nothing in a file is executed: ``.pt`` files are pickles, and a reader of their own takes only plain values
and tensors from them.
"""

from .load import load_measured
from .profile import JetSpecProfile, load_profile
from .record import Measured

__all__ = ["Measured", "load_measured", "JetSpecProfile", "load_profile"]
