"""`cpb` and `python -m flows.cli`. Imports almost nothing, so that Ctrl-C is handled while the commands are loaded."""

import json
import os
import signal
import sys
from contextlib import suppress
from typing import Any, NoReturn

_INTERRUPTED = 130  # `schemas.errors.EXIT_INTERRUPTED`, which is not imported here
_CONTINUE = "run the same command again to continue"


def main() -> None:
    """Run `cpb`; after Ctrl-C say how to continue, and exit with code 130."""
    try:
        from flows.cli.app import run

        run()
    except KeyboardInterrupt:
        end_interrupted()


def end_interrupted(how: str = _CONTINUE) -> NoReturn:
    """End the process immediately, when all `finally` blocks have run, and print how to continue.

    Python's own exit would wait for threads that still download or compute; ending them loses nothing because files are
    written atomically. Trainers end with the process that started them.
    """
    text = f"interrupted; {how}"
    print(f"cpb: {text}", file=sys.stderr, flush=True)
    if "--json" in sys.argv:
        told = {"error": text, "code": "interrupted", "field": "", "exit": _INTERRUPTED}
        print(json.dumps(told))
    sys.stdout.flush()
    os._exit(_INTERRUPTED)


def tell_at_sigterm() -> None:
    """Let SIGTERM print how to continue before it ends the process, as it does without a handler."""
    signal.signal(signal.SIGTERM, _terminated)


def _terminated(number: int, _frame: Any) -> None:
    with suppress(OSError):  # stderr is closed
        # Not by print, which may be what the signal has interrupted.
        os.write(2, f"\ncpb: terminated; {_CONTINUE}\n".encode())
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
