"""Waiting that Ctrl-C ends, in the main thread and in the threads that work for it.

Python raises `KeyboardInterrupt` in the main thread alone. The other threads ask: a call that was started by
`tasks.parallel.run_each` carries a stop event in its context, and `pause` and `check_interrupted` look at it.
"""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_stop: ContextVar[threading.Event | None] = ContextVar("cpb_stop", default=None)


class Interrupted(BaseException):
    """This call was asked to give up. No `Exception`: it must not be taken for a failure of the work."""


def pause(seconds: float) -> None:
    """Sleep; raises `Interrupted` as soon as the calling thread's work was asked to stop."""
    if stop := _stop.get():
        stop.wait(seconds)
        check_interrupted()
    else:
        time.sleep(seconds)


def check_interrupted() -> None:
    """Raise `Interrupted` where the calling thread's work was asked to stop."""
    if (stop := _stop.get()) and stop.is_set():
        raise Interrupted("stopped because the run was interrupted")


@contextmanager
def stoppable(stop: threading.Event) -> Iterator[None]:
    """Let `pause` and `check_interrupted` look at this event inside the block (and in copies of its context)."""
    token = _stop.set(stop)
    try:
        yield
    finally:
        _stop.reset(token)


def let_ctrl_c_end_waits() -> None:
    """Make a Ctrl-C end system calls that wait, such as the one below an untimed `future.result()`.

    polars (seen with 2.1) replaces the handler of SIGINT when it is imported and sets SA_RESTART, with which the
    kernel goes on waiting: the main thread would notice the signal only when the wait ends by itself. Its handler
    stays in place (it ends a query that runs), only the flag goes. polars sets it once, so call this after its import.
    """
    signal.siginterrupt(signal.SIGINT, True)
