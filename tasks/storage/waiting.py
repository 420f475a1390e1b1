"""Waiting that Ctrl-C ends, in the main thread and in the threads that work for it.

Python raises `KeyboardInterrupt` in the main thread alone. The other threads ask: a call that was started by
`tasks.running.parallel.run_each` carries a stop event in its context, and `pause` and `check_interrupted` look at it.
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
    """Make a Ctrl-C end system calls in which the main thread waits, such as that of an untimed `future.result()`.

    polars (seen with 2.1) takes over SIGINT when it is imported, in two ways that do not suit threads: its handler is
    installed with SA_RESTART, so the kernel goes on waiting and the main thread notices the signal only when the wait
    ends by itself; and it raises `KeyboardInterrupt` in every thread that is in a query. This puts Python's own
    handler back, whatever function it calls. polars takes over once, so call this after its import. Only the main
    thread can; a call from another one does nothing.
    """
    handler = signal.getsignal(signal.SIGINT)
    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, handler)
