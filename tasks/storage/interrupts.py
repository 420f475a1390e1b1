"""Waits that Ctrl-C can end, in every thread.

Python raises `KeyboardInterrupt` only in the main thread. The other threads poll: a call started by
`tasks.running.parallel.run_each` has a stop event in its context, which `pause` and `check_interrupted` check.
"""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_stop: ContextVar[threading.Event | None] = ContextVar("cpb_stop", default=None)


class Interrupted(BaseException):
    """This call was asked to stop. Not an `Exception`: it must not be mistaken for a failure of the work."""


def pause(seconds: float) -> None:
    """Sleep; raises `Interrupted` as soon as the calling thread's work was asked to stop."""
    if stop := _stop.get():  # none in the main thread, whose sleep Ctrl-C ends by itself
        stop.wait(seconds)
        check_interrupted()
    else:
        time.sleep(seconds)


def check_interrupted() -> None:
    """Raise `Interrupted` if the calling thread's work was asked to stop."""
    if (stop := _stop.get()) and stop.is_set():
        raise Interrupted("stopped because the run was interrupted")


@contextmanager
def stoppable(stop: threading.Event) -> Iterator[None]:
    """Make `pause` and `check_interrupted` check this event inside the block (and in copies of its context)."""
    token = _stop.set(stop)
    try:
        yield
    finally:
        _stop.reset(token)


def let_ctrl_c_end_waits() -> None:
    """Make Ctrl-C end system calls in which the main thread waits, such as an untimed `future.result()`.

    polars (seen with 2.1) takes over SIGINT on import, in two ways unsuitable for threads: its handler is installed
    with SA_RESTART, so the kernel continues the wait and the main thread notices the signal only when the wait ends by
    itself; and it raises `KeyboardInterrupt` in every thread that is in a query. This reinstalls Python's own handler,
    whatever function it calls. polars takes over only once, so call this after its import. It works only in the main
    thread; a call from another thread does nothing.
    """
    handler = signal.getsignal(signal.SIGINT)
    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, handler)
