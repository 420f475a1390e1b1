"""Makes a plain function a step of the DAG: with a policy (retries, concurrent calls) and a Prefect task.

Steps are called by name, as the functions that they are. The policy is part of the function that both ways of running
call, so a run without Prefect retries, waits and limits itself exactly as under a Prefect server.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import update_wrapper, wraps
from typing import Any, Generic, ParamSpec, TypeVar, cast

import tenacity
from prefect import Task, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import RunInput, State, TaskRunResult
from prefect.context import FlowRunContext, TaskRunContext
from prefect.states import Completed
from prefect.task_engine import run_task_sync
from prefect.utilities.annotations import quote
from prefect.utilities.callables import get_call_parameters
from prefect.utilities.engine import get_state_for_result

from schemas.failure import Failure
from tasks.storage.interrupts import pause
from tasks.storage.urls import without_credentials

log = logging.getLogger("cpb")

P = ParamSpec("P")
R = TypeVar("R")

RunName = str | Callable[[dict[str, Any]], str]

_RESULTS = ("models", "series", "fleets", "members", "judgements", "rows")
"""Fields of the records of `schemas.handover` that contain successful results."""


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
        # No Prefect cache and no Prefect retries: a step finds its finished work on disk by digest, which also works
        # without a server and after kill -9.
        named: Any = run_name or None
        self.task: Task[..., Any] = task(
            name=name, task_run_name=named, cache_policy=NO_CACHE, persist_result=False
        )(_showing_failures(self.fn))
        update_wrapper(self, fn)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the step."""
        return self.after()(*args, **kwargs)

    def after(self, *results: object) -> Callable[P, R]:
        """Return the step, with an arrow on Prefect's picture from the task run that made each of these results.

        The results that are arguments, or their elements, have such an arrow anyway. Others are named: what a step has
        left on the disk, and a part of its result.
        """

        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if FlowRunContext.get() is None:
                return self.fn(*args, **kwargs)
            # Quoted, because Prefect would look for results in every record below an argument, which takes long and
            # draws an arrow from all that ever led to it.
            given = get_call_parameters(self.fn, args, kwargs)
            made_by = _made_by([*results, *given.values()])
            result: Any = run_task_sync(
                self.task,
                parameters={name: quote(value) for name, value in given.items()},
                dependencies=dict.fromkeys([*given][:1], made_by),  # by parameter: the picture shows none
            )
            # A task whose function returns a state of its own (`_showing_failures`) is answered with that state.
            return cast(R, result.result() if isinstance(result, State) else result)

        return call


def took(*results: object) -> None:
    """Draw an arrow from the task runs of these results to the running one, to which they came while it ran."""
    running = TaskRunContext.get()
    if running is not None:
        # Prefect's server takes the inputs of a task run from each of its events, so also from that of its end.
        inputs: dict[str, Any] = running.task_run.task_inputs
        inputs["took"] = [*inputs.get("took", ()), *_made_by(results)]


def _made_by(values: Iterable[object]) -> set[RunInput]:
    """Return the task runs that have made these values, or elements of them."""
    parts = [
        part for value in values for part in (value, *(value if isinstance(value, list | tuple) else ()))
    ]
    states = [found[0] for part in parts if (found := get_state_for_result(part))]
    ids = {state.state_details.task_run_id for state in states}  # a result and its parts have one state
    return {TaskRunResult(id=id_) for id_ in ids if id_}


def _showing_failures(fn: Callable[P, R]) -> Callable[P, R | State[R]]:
    """Return the function with a result that has failures wrapped in a state, whose name Prefect's page shows.

    The state's type is Completed all the same: the task has done its work, and for a state of type Failed Prefect
    would log the whole value as an error.
    """

    @wraps(fn)
    def run(*args: P.args, **kwargs: P.kwargs) -> R | State[R]:
        value = fn(*args, **kwargs)
        failures = [value] if isinstance(value, Failure) else list(getattr(value, "failures", ()))
        if not failures:
            return value
        more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
        reason = without_credentials(f"{failures[0].subject}: {failures[0].reason}{more}")
        # Partial where something is left to go on with, Failed where nothing is: that is what a person looks for.
        good = not isinstance(value, Failure) and any(getattr(value, name, None) for name in _RESULTS)
        return Completed(name="Partial" if good else "Failed", message=reason, data=value)

    return run


def step(
    name: str, *, run_name: RunName = "", workers: int = 1, retry: Retry | None = None
) -> Callable[[Callable[P, R]], Step[P, R]]:
    """Return a decorator that makes a function a step.

    Args:
        run_name: name of a call on Prefect's page: a template of the parameters, as in `features {series.name}`, or a
            function of them.
    """
    return lambda fn: Step(fn, name, run_name, workers, retry)
