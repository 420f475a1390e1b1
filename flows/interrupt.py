"""How a command ends after Ctrl-C."""

import os
import sys
from typing import NoReturn

from schemas.errors import INTERRUPTED

SENTENCE = "interrupted; run the same command again to go on"


def end_interrupted() -> NoReturn:
    """Say how to go on and end the process at once with exit code 130.

    Call it when `KeyboardInterrupt` has passed every `finally`. Python's own exit would wait for threads that still
    download or compute; nothing of theirs is lost, because files appear whole or not at all. Trainers end with the
    process that started them.
    """
    print(f"cpb: {SENTENCE}", file=sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(INTERRUPTED)
