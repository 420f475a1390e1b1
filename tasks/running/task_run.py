"""A call of a step as a task run in Prefect, with its arrows and its state; imported within a flow run alone."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import Any

from prefect import Task, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import RunInput, State, TaskRunResult
from prefect.context import TaskRunContext
from prefect.states import Completed
from prefect.task_engine import run_task_sync
from prefect.utilities.annotations import quote
from prefect.utilities.callables import get_call_parameters
from prefect.utilities.engine import get_state_for_result

from schemas.failure import Failure
from tasks.storage.urls import without_credentials

_RESULTS = ("models", "series", "fleets", "members", "judgements", "rows")
"""Fields of the records of `schemas.handover` that contain successful results."""


def task_of(
    fn: Callable[..., Any], name: str, run_name: str | Callable[[dict[str, Any]], str]
) -> Task[..., Any]:
    """Return a step's function as a Prefect task; `run_name` as in `tasks.running.step.step`."""
    # No Prefect cache and no Prefect retries: a step finds its finished work on disk by digest, which also works
    # without a server and after kill -9.
    named: Any = run_name or None
    return task(name=name, task_run_name=named, cache_policy=NO_CACHE, persist_result=False)(
        _showing_failures(fn)
    )


def run_task(
    of_step: Task[..., Any],
    fn: Callable[..., Any],
    results: Sequence[object],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Any:
    """Run a step's task on the arguments of a call of its function, with an arrow from what made each result."""
    # Quoted, because Prefect would look for results in every record below an argument, which takes long and
    # draws an arrow from all that ever led to it.
    given = get_call_parameters(fn, args, dict(kwargs))
    made_by = _made_by([*results, *given.values()])
    result: Any = run_task_sync(
        of_step,
        parameters={name: quote(value) for name, value in given.items()},
        dependencies=dict.fromkeys([*given][:1], made_by),  # by parameter: the picture shows none
    )
    # A task whose function returns a state of its own (`_showing_failures`) is answered with that state.
    return result.result() if isinstance(result, State) else result


def add_inputs(results: Iterable[object]) -> None:
    """Add the task runs of results to the inputs of the running task."""
    if running := TaskRunContext.get():
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


def _showing_failures(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with a result that has failures wrapped in a state, whose name Prefect's page shows.

    The state's type is Completed all the same: the task has done its work, and for a state of type Failed Prefect
    would log the whole value as an error.
    """

    @wraps(fn)
    def run(*args: Any, **kwargs: Any) -> Any:
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
