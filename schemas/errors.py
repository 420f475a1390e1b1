"""The errors people see. Each message is one sentence: what, where, and what to do next."""

COMPLETE, FATAL, USAGE, PARTIAL = 0, 1, 2, 3
"""Exit codes of every command; PARTIAL means that good results were kept."""


class CpbError(Exception):
    """Something that stops the command; printed as one sentence without a traceback."""

    exit_code = FATAL


class UsageError(CpbError):
    """The command line or the configuration asks for something impossible."""

    exit_code = USAGE


class MemberError(CpbError):
    """One coin x timeframe cannot go on; the others do. The message is the reason shown to the user."""

    exit_code = PARTIAL


class BusyError(CpbError):
    """Another process holds what this one needs; the same call may succeed a while later."""
