"""Exceptions that name what went wrong; see design section "Errors" in docs."""


class KdtrError(ValueError):
    """A file is missing, truncated, corrupt, foreign or breaks the trace schema."""


class BackendError(RuntimeError):
    """A backend asked for by name cannot run here, or was given arrays of the wrong kind."""


class CompileError(RuntimeError):
    """A kernel did not compile.

    Parameters
    ----------
    message : str
        First error as ``file:line: text``, with the user's own file name and line.
    log : str
        Complete compiler log.
    options : tuple of str
        Options passed to the compiler.
    """

    def __init__(self, message: str, log: str = "", options: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.log = log
        self.options = tuple(options)
