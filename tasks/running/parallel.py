"""Parallel calls in threads, which a single Ctrl-C ends within seconds."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import copy_context
from typing import TypeVar

from tasks.storage.interrupts import Interrupted, check_interrupted, let_ctrl_c_end_waits, stoppable

T = TypeVar("T")

STOP_S = 2.0
"""Seconds for interrupted calls to end: longer than `WorkerProcess.stop` needs, 3 s in total."""

_SLICE_S = 0.2
"""Maximum single wait of the calling thread, so that it notices an interrupt whatever handles the signal."""


def run_each(calls: Sequence[Callable[[], T]], workers: int) -> list[T | Exception]:
    """Run all calls in up to `workers` threads and return each result, or the error that ended the call, in order.

    Each call gets a copy of the caller's context variables. If the caller is interrupted (Ctrl-C, or an enclosing
    `run_each`), calls that have not started are dropped, running calls are asked to stop (see
    `tasks.storage.interrupts`), and the interrupt is re-raised when they have stopped, or after `STOP_S` seconds.
    """
    stop = threading.Event()
    futures: list[Future[T]] = []
    with thread_pool(min(workers, len(calls)), "call") as pool:
        try:
            futures.extend(pool.submit(copy_context().run, _stoppable, call, stop) for call in calls)
            pending = set(futures)
            while pending and not stop.is_set():
                # In slices: a signal's handler runs in this thread, between two waits.
                _, pending = wait(pending, timeout=_SLICE_S)
                check_interrupted()
        except BaseException:
            _stop_all(pool, futures, stop)
            raise
        if stop.is_set():
            _stop_all(pool, futures, stop)
            raise _interrupt_of(futures)
    errors = [future.exception() for future in futures]
    return [
        error if isinstance(error, Exception) else future.result()
        for error, future in zip(errors, futures, strict=True)
    ]


@contextmanager
def thread_pool(workers: int, name: str, *, grace_s: float = 0.0) -> Iterator[ThreadPoolExecutor]:
    """Yield a thread pool whose waits can be ended by Ctrl-C.

    The end of the block drops calls that have not started and waits for running calls.

    Args:
        grace_s: maximum seconds that an interrupt waits for running calls. 0 suits downloads, which can hang; file
            writes need a moment to finish.
    """
    let_ctrl_c_end_waits()
    pool = ThreadPoolExecutor(max(1, workers), thread_name_prefix=name)
    try:
        yield pool
    except BaseException as error:
        if isinstance(error, Exception):
            pool.shutdown(cancel_futures=True)
        else:
            pool.shutdown(wait=False, cancel_futures=True)
            # In a thread of its own: the pool's own end waits for all calls, and cannot be given a limit.
            closing = threading.Thread(target=pool.shutdown, daemon=True)
            closing.start()
            closing.join(grace_s)
        raise
    pool.shutdown(cancel_futures=True)


def _stoppable(call: Callable[[], T], stop: threading.Event) -> T:
    with stoppable(stop):
        try:
            check_interrupted()
            return call()
        except Exception:
            raise
        except BaseException:  # before this thread takes the next call
            stop.set()
            raise


def _stop_all(pool: ThreadPoolExecutor, futures: Sequence[Future[T]], stop: threading.Event) -> None:
    stop.set()
    pool.shutdown(wait=False, cancel_futures=True)
    wait(futures, STOP_S)


def _interrupt_of(futures: Sequence[Future[T]]) -> BaseException:
    """Return the interrupt that ended the first call; the other calls stopped on request."""
    errors = [future.exception() for future in futures if future.done() and not future.cancelled()]
    # Ctrl-C itself goes before the reports of those that it stopped.
    first = [error for error in errors if error and not isinstance(error, Exception | Interrupted)]
    return first[0] if first else Interrupted("stopped because one of the calls was interrupted")
