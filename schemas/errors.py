"""Errors shown to users. Each message is a single sentence: what happened, where, and what to do next."""

from functools import partial

COMPLETE, FATAL, USAGE, PARTIAL, INTERRUPTED = 0, 1, 2, 3, 130
"""Exit codes of all commands; PARTIAL: some series or models failed, the results of the others are kept."""


class CpbError(Exception):
    """Base of all errors that stop a command; printed as a single sentence without a traceback.

    `code` names the kind of error for programs and tests (kebab-case), `field` the option or file at fault.
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
    """The command line or the configuration is invalid."""

    exit_code = USAGE
    default_code = "usage"


class MemberError(CpbError):
    """A single series or model failed and the others continue. The message is the reason shown to the user."""

    exit_code = PARTIAL
    default_code = "member"


class BusyError(CpbError):
    """Another process holds a required resource; the same call may succeed later."""

    default_code = "busy"


class DamagedError(CpbError):
    """A stored file differs from what was written; the message names the file and the command that recreates it."""

    default_code = "damaged"
