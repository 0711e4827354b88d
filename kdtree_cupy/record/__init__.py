"""Record draft traces: decode prompts, then ask the drafter at every position what it would have drafted.

:func:`record` works with the engine of this package, :mod:`kdtree_cupy.record.hf` with any causal language
model of Hugging Face.  Both write the schema of docs/traces.md, one sequence at a time, and continue an
interrupted recording.
"""

from .engine import record
from .rows import checksum, draft_rows

__all__ = ["checksum", "draft_rows", "record"]
