"""Errors shown to users, and phrases of messages. An error is a sentence: what happened, where, what to do next."""

import logging
from functools import partial
from importlib.metadata import requires

from cpbmodels.errors import pip_install

EXIT_COMPLETE, EXIT_FATAL, EXIT_USAGE, EXIT_PARTIAL, EXIT_INTERRUPTED = 0, 1, 2, 3, 130
"""Exit codes of all commands; EXIT_PARTIAL: some series or models failed, the results of the others are kept."""


MINUTE = "%Y-%m-%d %H:%M"
"""Form of a time for people, in UTC; programs are given ISO 8601, as in `2025-06-06T12:00:00Z`."""

log = logging.getLogger("cpb")
"""Messages for people, on the terminal or in a flow run's log."""


class CpbError(Exception):
    """Base of all errors that stop a command; printed as a single sentence without a traceback.

    `code` names the kind of error for programs and tests (kebab-case), `field` the option or file at fault.
    """

    exit_code = EXIT_FATAL
    default_code = "error"

    def __init__(self, message: str, *, code: str = "", field: str = "") -> None:
        super().__init__(message)
        self.code = code or self.default_code
        self.field = field

    def __reduce__(self) -> tuple[object, ...]:  # keyword arguments survive pickling between processes
        return partial(type(self), str(self), code=self.code, field=self.field), ()


class UsageError(CpbError):
    """The command line or the configuration is invalid. The field is by default the code's name."""

    exit_code = EXIT_USAGE
    default_code = "usage"

    def __init__(self, message: str, *, code: str = "", field: str | None = None) -> None:
        super().__init__(message, code=code, field=code if field is None else field)


class MemberError(CpbError):
    """A single series or model failed and the others continue. The message is the reason shown to the user."""

    exit_code = EXIT_PARTIAL
    default_code = "member"


class BusyError(CpbError):
    """Another process holds a required resource; the same call may succeed later."""

    default_code = "busy"


class DamagedError(CpbError):
    """A stored file differs from what was written; the message names the file and the command that recreates it."""

    default_code = "damaged"

    @classmethod
    def of(cls, place: object, reason: object, remedy: str = "", *, name: str = "") -> "DamagedError":
        """Return the error of a damaged file or folder; `name`: of what lies there, where its path says too little."""
        text = f"{name or place} is damaged: {reason}"
        return cls(f"{text}; {remedy}" if remedy else text, field=str(place))


def counted(number: int, noun: str) -> str:
    """Return the number with its noun: `1 member`, `2 members`, `1,200 windows`, `3 series`."""
    # one series, two series
    plural = noun if noun.endswith("series") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def age(seconds: float) -> str:
    """Return a duration in its largest whole unit: `25 min`, `3 h`, `537 days`."""
    for unit_s, name in ((86400, "day"), (3600, "h"), (60, "min")):
        if (number := round(seconds / unit_s)) and seconds >= unit_s:
            return counted(number, name) if name == "day" else f"{number} {name}"
    return f"{seconds:.0f} s"


def install_extra(extra: str) -> str:
    """Return the command that installs an extra's packages, by their names: the project is on no package index."""
    # from the installed package's metadata, where pyproject's extras are
    lines = [line.partition("; extra == ") for line in requires("cpb-forecast") or []]
    return f"`{pip_install(*(name for name, _, marker in lines if marker[1:-1] == extra))}`"


def p_value(p: float | None) -> str:
    """Return a p-value as `.553` or `<.001`, never as zero."""
    # NaN: the test had no data
    if p is None or p != p:
        return "-"
    return "<.001" if p < 0.001 else f"{p:.3f}".removeprefix("0")
