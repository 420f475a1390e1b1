"""Parallel calls in threads, which a single Ctrl-C ends within seconds, and the progress of work.

Progress is reported by steps and displayed by a listener: bars on a terminal, lines in a log.

As in logging, a step reports without knowing the listener, which is optional. The listener is in a context variable, so
that calls started by `run_each` find the listener of their own flow.
"""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from typing import Protocol, TypeVar

from tasks.storage.interrupts import Interrupted, check_interrupted, let_ctrl_c_end_waits, stoppable

T = TypeVar("T")

STOP_S = 2.0
"""Seconds for interrupted calls to end: longer than `tasks.training.local.stop` needs, 3 s in total."""

_SLICE_S = 0.2
"""Maximum single wait of the calling thread, so that it notices an interrupt whatever handles the signal."""

NOT_ENDED = 1e-6
"""The share of a piece of work that is left open where all its units are done but it has not ended."""


def usable_cores() -> int:
    """Return the number of cores that this process may use, as `cpbmodels.device.monitor`, which imports torch."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
    first = [error for error in errors if error and not isinstance(error, Exception | Interrupted)]
    return first[0] if first else Interrupted("stopped because one of the calls was interrupted")


@dataclass(frozen=True)
class Progress:
    """The progress of one piece of work.

    step: its name, such as `ingest` or `train gru`; reports with the same name replace each other.
    done, total: in units, fractions allowed; total 0: not known yet. `done == total` ends it. Up to `NOT_ENDED` of the
        total below it all units are displayed as done.
    unit: a plural noun, such as `files`.
    facts: further facts, most important first, such as `loss 2.310 / 2.402`.
    """

    step: str
    done: float
    total: float
    unit: str
    facts: tuple[str, ...] = ()


PrintLine = Callable[[str], None]
"""Displays or prints a sentence."""


class Listener(Protocol):
    """Displays progress; its methods are called from any thread."""

    def progress(self, report: Progress) -> None:
        """Receive a report."""

    def line(self, text: str) -> None:
        """Display a sentence once, for example the device of a training."""


_listener: ContextVar[Listener | None] = ContextVar("cpb_progress", default=None)


@contextmanager
def reports_to(listener: Listener) -> Iterator[None]:
    """Send reports of the block, and of calls that it starts, to `listener`."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def has_listener() -> bool:
    """Whether there is a listener."""
    return _listener.get() is not None


def report_progress(step: str, done: float, total: float, unit: str, *facts: str) -> None:
    """Report the progress of a piece of work; the arguments are those of `Progress`."""
    if listener := _listener.get():
        listener.progress(Progress(step, done, total, unit, facts))


def report_line(text: str) -> None:
    """Report a sentence that is displayed whether or not bars are drawn."""
    if listener := _listener.get():
        listener.line(text)


@contextmanager
def reporting(step: str, total: float, unit: str) -> Iterator[None]:
    """Report the start of a piece of work, and its end even if the block raises."""
    report_progress(step, 0, total, unit)
    try:
        yield
    finally:
        report_progress(step, max(total, 1), max(total, 1), unit)
