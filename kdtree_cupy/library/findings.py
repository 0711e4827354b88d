"""What a check of the environment found: one record a check, with the cure of what is wrong."""

from __future__ import annotations

from dataclasses import asdict, dataclass

OK, INFO, WARNING, FAULT = "ok", "info", "warning", "fault"


@dataclass(frozen=True)
class Finding:
    """One result: what was looked at, how it stands, what was seen, and what to do about it.

    Parameters
    ----------
    check : str
        Such as ``"driver"``.
    status : {"ok", "info", "warning", "fault"}
        "info": something optional is not here; "warning": it works, but may surprise; "fault": something that
        is installed cannot work.
    detail : str
        What was seen.
    cure : str
        What to do; empty if there is nothing to do.
    """

    check: str
    status: str
    detail: str
    cure: str = ""

    def to_json(self) -> dict[str, str]:
        """Return a dict ready for ``json.dumps``."""
        return asdict(self)
