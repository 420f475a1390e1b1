"""Makes a plain function a step of the DAG: with a policy (retries, concurrent calls) and a Prefect task.

Steps are called by name, as the functions that they are. The policy is part of the function that both ways of running
call, so a run without Prefect retries, waits and limits itself exactly as under a Prefect server.
"""

import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, update_wrapper
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, cast

import tenacity

from tasks.storage.interrupts import pause

if TYPE_CHECKING:
    from prefect import Task

log = logging.getLogger("cpb")

P = ParamSpec("P")
R = TypeVar("R")

RunName = str | Callable[[dict[str, Any]], str]


def _is_in(kind: str) -> bool:
    """Whether this is within a run of a Prefect flow (`FlowRunContext`) or task (`TaskRunContext`)."""
    # Nothing runs in a library that is not loaded, and loading Prefect takes .7 s.
    context = sys.modules.get("prefect.context")
    return context is not None and getattr(context, kind).get() is not None


@dataclass(frozen=True)
class Retry:
    """The error type after which a step is retried, the number of retries, and the wait in seconds."""

    on: type[Exception]
    times: int
    wait_s: float

    def around(self, fn: Callable[P, R], name: str) -> Callable[P, R]:
        """Return the function with these retries; each retry is logged with the error message."""

        def tell(state: tenacity.RetryCallState) -> None:
            error = state.outcome.exception() if state.outcome else None
            log.warning("%s is tried again in %.0f s: %s", name, self.wait_s, error)

        return tenacity.retry(
            retry=tenacity.retry_if_exception_type(self.on),
            stop=tenacity.stop_after_attempt(self.times + 1),
            wait=tenacity.wait_fixed(self.wait_s),
            sleep=pause,  # interruptible
            before_sleep=tell,
            reraise=True,
        )(fn)


class Step(Generic[P, R]):
    """A step: within a run of a Prefect flow a call is a task run, elsewhere a plain call of the function.

    Both return and raise the same. Which one it is, the caller's context variables say, so a thread needs a copy of
    them, as `tasks.running.parallel.run_each` gives it. `workers`: maximum concurrent calls.
    """

    def __init__(
        self, fn: Callable[P, R], name: str, run_name: RunName, workers: int, retry: Retry | None
    ) -> None:
        self.name, self.workers = name, workers
        self.fn: Callable[P, R] = retry.around(fn, name) if retry else fn
        self._run_name = run_name
        update_wrapper(self, fn)

    @cached_property
    def task(self) -> "Task[..., Any]":
        """The step as a Prefect task."""
        from tasks.running.task_run import task_of

        return task_of(self.fn, self.name, self._run_name)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the step."""
        return self.after()(*args, **kwargs)

    def after(self, *results: object) -> Callable[P, R]:
        """Return the step, with an arrow on Prefect's picture from the task run that made each of these results.

        The results that are arguments, or their elements, have such an arrow anyway. Others are named: what a step has
        left on the disk, and a part of its result.
        """

        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if not _is_in("FlowRunContext"):
                return self.fn(*args, **kwargs)
            from tasks.running.task_run import run_task

            return cast(R, run_task(self.task, self.fn, results, args, kwargs))

        return call


def took(*results: object) -> None:
    """Draw an arrow from the task runs of these results to the running one, to which they came while it ran."""
    if _is_in("TaskRunContext"):
        from tasks.running.task_run import add_inputs

        add_inputs(results)


def step(
    name: str, *, run_name: RunName = "", workers: int = 1, retry: Retry | None = None
) -> Callable[[Callable[P, R]], Step[P, R]]:
    """Return a decorator that makes a function a step.

    Args:
        run_name: name of a call on Prefect's page: a template of the parameters, as in `features {series.name}`, or a
            function of them.
    """
    return lambda fn: Step(fn, name, run_name, workers, retry)
