"""The errors people see. Each message is one sentence: what, where, and what to do next."""

from functools import partial

COMPLETE, FATAL, USAGE, PARTIAL, INTERRUPTED = 0, 1, 2, 3, 130
"""Exit codes of every command; PARTIAL means that good results were kept."""


class CpbError(Exception):
    """Something that stops the command; printed as one sentence without a traceback.

    `code` names the kind of error for programs and tests (kebab-case), `field` the option or file it is about.
    """

    exit_code = FATAL
    default_code = "error"

    def __init__(self, message: str, *, code: str = "", field: str = "") -> None:
        super().__init__(message)
        self.code = code or self.default_code
        self.field = field

    def __reduce__(self) -> tuple[object, ...]:  # keyword arguments survive pickling between processes
        return partial(type(self), str(self), code=self.code, field=self.field), ()


class UsageError(CpbError):
    """The command line or the configuration asks for something impossible."""

    exit_code = USAGE
    default_code = "usage"


class MemberError(CpbError):
    """One series or model cannot go on; the others do. The message is the reason shown to the user."""

    exit_code = PARTIAL
    default_code = "member"


class BusyError(CpbError):
    """Another process holds what this one needs; the same call may succeed a while later."""

    default_code = "busy"


class DamagedError(CpbError):
    """A stored file is not what was written; the message names it and the command that makes it again."""

    default_code = "damaged"
