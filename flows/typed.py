"""How cpb was started, so that the commands in its messages can be typed as they are printed.

Messages are written with `cpb`, in backticks; the terminal prints them by `as_typed`. What is stored, sent, or printed
for programs keeps `cpb`: it is read on other machines.
"""

import re
import shlex
import shutil
import sys
from pathlib import Path

_MODULE = Path(__file__).with_name("cli") / "__main__.py"

_COMMAND = re.compile(r"(?<![^\s`])cpb(?= )")
_QUOTED = re.compile(r"`[^`\n]*`")


def program() -> str:
    """Return the words that start this cpb in the shell of whoever started it: `cpb`, or `.venv/bin/cpb`."""
    started = Path(sys.argv[0])
    if started == _MODULE:  # `python -m flows.cli`
        return shlex.join(sys.orig_argv[: len(sys.orig_argv) - len(sys.argv) + 1])
    # A shell that finds a command by PATH hands over its whole path.
    found = shutil.which("cpb")
    if started.name != "cpb" or (found and started.exists() and started.samefile(found)):
        return "cpb"
    return shlex.quote(sys.argv[0])


def typed_command(command: str) -> str:
    """Return a command with `cpb` in it as it must be typed."""
    return _COMMAND.sub(lambda _: program(), command)


def as_typed(text: str) -> str:
    """Return a text with each command between backticks as it must be typed."""
    return _QUOTED.sub(lambda quoted: typed_command(quoted[0]), text)
