"""How a flow calls its steps: through Prefect's engine, or directly where no Prefect server is in use.

A step is a Prefect task either way; `task.fn` is the same function without the engine. The direct way needs
no server, starts at once, and leaves nothing behind when it is killed.
"""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec

from prefect.states import Failed, State

from schemas.errors import CpbError

log = logging.getLogger("cpb")

P = ParamSpec("P")


@dataclass(frozen=True)
class Outcome:
    """What one of several parallel calls gave: a value, or the error that ended it."""

    value: Any = None
    error: Exception | None = None


class Direct:
    """Calls a step's plain function; several calls share a pool of threads."""

    def one(self, step: Any, *args: Any) -> Any:
        """Return the result of one call; its error is raised."""
        return step.fn(*args)

    def each(self, step: Any, calls: Sequence[tuple[Any, ...]], workers: int) -> list[Outcome]:
        """Return the outcome of every call, in order; one call's error stops no other."""
        with ThreadPoolExecutor(max_workers=max(1, workers)) as pool:
            futures = [pool.submit(step.fn, *args) for args in calls]
            try:
                return [_outcome(future.result) for future in futures]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise


class ThroughPrefect:
    """Calls a step as a Prefect task of the running flow; `each` submits to the flow's task runner."""

    def one(self, step: Any, *args: Any) -> Any:
        """Return the result of one task run; its error is raised."""
        return step(*args)

    def each(self, step: Any, calls: Sequence[tuple[Any, ...]], workers: int) -> list[Outcome]:
        """Return the outcome of every task run, in order; one failed run stops no other."""
        futures = [step.submit(*args) for args in calls]
        return [_outcome(future.result) for future in futures]


Runner = Direct | ThroughPrefect


def _outcome(result: Callable[[], Any]) -> Outcome:
    try:
        return Outcome(value=result())
    except Exception as error:
        log.debug("a step failed", exc_info=error)
        return Outcome(error=error)


def plain_failures(flow: Callable[P, State]) -> Callable[P, State]:
    """Let a flow that meets an expected error end in the state Failed with its sentence, not in a traceback.

    Called directly, Prefect raises the error again, so the command line says the same sentence.
    """

    @wraps(flow)
    def run(*args: P.args, **kwargs: P.kwargs) -> State:
        try:
            return flow(*args, **kwargs)
        except CpbError as error:
            return Failed(message=str(error), data=error)

    return run
