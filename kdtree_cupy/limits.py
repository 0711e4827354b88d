"""Limits and status bits shared by references, kernels (through ``-D``) and checks."""

MAX_DEPTH = 32
"""Largest number of drafted positions D."""

MAX_WIDTH = 1024
"""Largest number of ranks K kept per position."""

MAX_BUDGET = 1024
"""Largest number of draft nodes B (root excluded)."""

MAX_NODES = MAX_BUDGET + 1
"""Largest number of verified rows N = B + 1 (root included)."""

STATUS_NON_FINITE = 1 << 0
"""Status bit 0: NaN or +inf in the input."""

STATUS_UNSORTED = 1 << 1
"""Status bit 1: a row of log-probs is not descending, or holds a value above 0."""

STATUS_BAD_PARENT = 1 << 2
"""Status bit 2: a node's parent is not an earlier node."""

STATUS_BAD_TARGET = 1 << 3
"""Status bit 3: the target token at a visited node is out of range."""

STATUS_CAPACITY = 1 << 4
"""Status bit 4: no room (a missing page, a full row: nothing moved; more nodes than slots: cut)."""

STATUS_TEXT = {
    STATUS_NON_FINITE: "NaN or +inf in the input",
    STATUS_UNSORTED: "a row of log-probs is not descending, or holds a value above 0",
    STATUS_BAD_PARENT: "a node's parent is not an earlier node",
    STATUS_BAD_TARGET: "the target token at a visited node is out of range",
    STATUS_CAPACITY: "no room: a missing page or a full row (nothing moved), or more nodes than slots (cut)",
}
"""What each status bit means, for error messages."""


def describe_status(status: int) -> str:
    """Return the meaning of a status word, for example ``"NaN or +inf in the input"``.

    Parameters
    ----------
    status : int
        Status word of one request; 0 means no fault.
    """
    known = [text for bit, text in STATUS_TEXT.items() if status & bit]
    return "; ".join(known) if known else ("no fault" if status == 0 else f"unknown status {status}")
