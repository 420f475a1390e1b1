"""What makes a plain function a step of the DAG: its policy (retries, calls at once) and its Prefect task.

The policy sits in the function that both ways of running call, so a run without Prefect retries, waits and limits
itself exactly as one under a Prefect server does.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import update_wrapper
from typing import Generic, ParamSpec, TypeVar

import tenacity
from prefect import Task, task
from prefect.cache_policies import NO_CACHE

log = logging.getLogger("cpb")

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Retry:
    """After which errors a step is tried again, how often, and after how many seconds."""

    on: type[Exception]
    times: int
    wait_s: float

    def around(self, fn: Callable[P, R], name: str) -> Callable[P, R]:
        """Return the function with these retries; each one is logged with the error's sentence."""

        def tell(state: tenacity.RetryCallState) -> None:
            error = state.outcome.exception() if state.outcome else None
            log.warning("%s is tried again in %.0f s: %s", name, self.wait_s, error)

        return tenacity.retry(
            retry=tenacity.retry_if_exception_type(self.on),
            stop=tenacity.stop_after_attempt(self.times + 1),
            wait=tenacity.wait_fixed(self.wait_s),
            before_sleep=tell,
            reraise=True,
        )(fn)


class Step(Generic[P, R]):
    """A step: call it directly, or through `task` in a Prefect flow. `workers`: calls of it at the same time."""

    def __init__(
        self, fn: Callable[P, R], name: str, run_name: str, workers: int, retry: Retry | None
    ) -> None:
        self.name, self.workers = name, workers
        self.fn: Callable[P, R] = retry.around(fn, name) if retry else fn
        # No Prefect cache and no Prefect retries: a step finds its own finished work on disk by digest, which also
        # holds without a server and after kill -9.
        self.task: Task[P, R] = task(
            name=name, task_run_name=run_name or None, cache_policy=NO_CACHE, persist_result=False
        )(self.fn)
        update_wrapper(self, fn)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the step without Prefect."""
        return self.fn(*args, **kwargs)


def step(
    name: str, *, run_name: str = "", workers: int = 1, retry: Retry | None = None
) -> Callable[[Callable[P, R]], Step[P, R]]:
    """Turn a function into a step.

    Args:
        run_name: how Prefect's page names one call, a template of the parameters: `features {series.name}`.
    """
    return lambda fn: Step(fn, name, run_name, workers, retry)
