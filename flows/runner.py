"""Calling flows and their steps: by Prefect's engine, or directly if no Prefect server is configured.

Retries, concurrency and time limits belong to the step (`tasks.running.step`), so both modes behave alike. The direct
mode needs no server, starts immediately, and leaves no open run when it is killed.
"""

import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from functools import partial, wraps
from typing import Annotated, Any, Literal, ParamSpec, TypeVar

from prefect.runtime import flow_run
from prefect.states import Failed, State
from pydantic.fields import FieldInfo

from flows.console import continue_without_reader, shown_progress
from flows.prefect_page import logged_to_run
from flows.prefect_server import check_server, share_leases
from flows.summary import Say, Summary
from schemas.errors import CpbError, UsageError, count
from schemas.handover import Failure, SeriesRecord
from schemas.scope import ScopeSpec, Spec, parse_instant
from tasks.features import features
from tasks.ingest import ingest
from tasks.market.ingest import with_listed_pairs
from tasks.running.parallel import run_each
from tasks.running.progress import tell, telling
from tasks.running.step import Step
from tasks.storage.urls import without_credentials
from tasks.tracking.database import store_errors
from tasks.tracking.records import SEPARATOR, instant_label

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound=Spec)
Scoped = TypeVar("Scoped", bound=ScopeSpec)


class Runner:
    """Calls steps. `prefect`: call them as task runs of the running flow."""

    def __init__(self, *, prefect: bool = False) -> None:
        self._prefect = prefect

    def one(self, step: Step[..., Any], *args: Any) -> Any:
        """Return the result of a call; an error of the step is raised."""
        return self._call(step)(*args)

    def each(
        self,
        step: Step[..., Any],
        calls: Sequence[tuple[Any, ...]],
        unit: str = "",
        workers: int | None = None,
        then: Callable[[int, Any], None] = lambda index, found: None,
    ) -> list[Any]:
        """Return the result of every call, in order, or its exception; an exception does not stop the other calls.

        Args:
            unit: what is counted, as in `series`; if given, the number of finished calls is reported as progress.
            workers: concurrent calls, default the step's own number; calls start in order.
            then: called with a call's index and its result or exception, as soon as the call has ended.
        """
        call, at_once = self._call(step), workers or step.workers
        done = itertools.count(1)

        def called(index: int) -> Any:
            try:
                found = call(*calls[index])
            except Exception as error:
                then(index, error)
                raise
            finally:
                if unit:
                    tell(step.name, next(done), len(calls), unit)
            then(index, found)
            return found

        with telling(step.name, len(calls), unit) if unit else nullcontext():
            return run_each([partial(called, index) for index in range(len(calls))], at_once)

    def _call(self, step: Step[..., Any]) -> Callable[..., Any]:
        return step.in_prefect if self._prefect else step.fn


def plain_failures(flow: Callable[P, State]) -> Callable[P, State]:
    """Make a flow that raises an expected error end in the state Failed with its message, without a traceback.

    When the flow is called directly, Prefect raises the error again, so the command line prints the same message. Log
    messages of cpb are sent to the run's log.
    """

    @wraps(flow)
    def run(*args: P.args, **kwargs: P.kwargs) -> State:
        share_leases()
        continue_without_reader()
        with logged_to_run(), shown_progress("flow"):
            try:
                with store_errors():
                    return flow(*args, **kwargs)
            except CpbError as error:
                return Failed(message=without_credentials(str(error)), data=error)

    return run


def flow_parameters(spec: type[S]) -> Callable[[Callable[[S], R]], Callable[..., R]]:
    """Give a flow function the fields of `spec` as its parameters and call it with the built spec.

        @flow(name="train-all", validate_parameters=False)
        @plain_failures
        @flow_parameters(RunSpec)
        def train_all(spec: RunSpec) -> State: ...

    Prefect reads a flow's signature for its run form (names, types, choices) and the `Args:` section of its docstring
    for the descriptions. `validate_parameters=False`: the specification validates the values, with its own messages.

    Raises (when the flow is called):
        UsageError: an invalid value, with the specification's message.
    """

    def decorate(function: Callable[[S], R]) -> Callable[..., R]:
        @wraps(function)
        def run(**parameters: Any) -> R:
            return function(spec(**parameters))

        declared = inspect.signature(function).return_annotation
        parameters = [_parameter(name, field) for name, field in spec.model_fields.items()]
        run.__dict__["__signature__"] = inspect.Signature(parameters, return_annotation=declared)
        run.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": declared}
        run.__doc__ = f"{inspect.getdoc(function) or ''}\n\nArgs:\n" + "\n".join(
            f"    {name}: {field.description}" for name, field in spec.model_fields.items()
        )
        return run

    return decorate


def run_name_of(flow: str, parameters: Mapping[str, Any]) -> str:
    """Return the name of a flow run, as its run in MLflow but for the series: `train-all · default · 2025-06-06`.

    The last part is `as_of`, or the current UTC day, with the time for a flow without preset, which runs every hour.
    """
    given = str(parameters.get("as_of") or "")
    try:
        until = instant_label(parse_instant(given, "as_of")) if given else ""
    except UsageError:  # the flow run ends with this error
        until = given
    preset = parameters.get("preset")
    now = datetime.now(UTC)
    return SEPARATOR.join(
        filter(None, (flow, preset, until or f"{now:{'%Y-%m-%d' if preset else '%Y-%m-%dT%H:%M'}}"))
    )


def named_run() -> str:
    """Return the name of the running flow run, however it was started; a flow's `flow_run_name`."""
    return run_name_of(flow_run.flow_name or "", flow_run.parameters)


def _parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    annotation: Any = field.annotation
    extra = field.json_schema_extra
    if isinstance(extra, dict) and isinstance(choices := extra.get("enum"), list):
        annotation = Literal[tuple(choices)]
    for limit in field.metadata:  # ranges and patterns, shown by the run form and checked by the server
        annotation = Annotated[annotation, limit]
    default = field.get_default(call_default_factory=True)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def in_prefect(flow: Callable[..., State], spec: Spec) -> dict[str, Any]:
    """Run a flow on the configured server, and return the same result as without a server."""
    check_server()
    # A flow that is called directly returns the data of its final state.
    result: Any = flow(**spec.model_dump())
    return dict(result)


def read_pairs(spec: Scoped, say: Say) -> Scoped:
    """Return a specification of the whole exchange with the pairs of its source's listing, and report them.

    Other specifications are returned unchanged.

    Raises:
        CpbError: the listing cannot be read, or no pair is left.
    """
    if not spec.whole_exchange or spec.pairs is not None:
        return spec
    found, sentence = with_listed_pairs(spec)
    say(sentence)
    return found


def series_records(spec: ScopeSpec, steps: Runner, say: Say, summary: Summary) -> list[SeriesRecord]:
    """Ingest the scope and compute its features; failures and leaps of a price level are added to the summary."""
    found = steps.one(ingest, spec.scope, spec.tail)
    summary.add((*found.failures, *found.leaps), say)
    say(
        f"ingested {count(len(found.series), 'series')} ({count(found.requests, 'request')}, {found.seconds:.1f} s)"
    )
    outcomes = steps.each(features, [(spec.scope, series) for series in found.series], "series")
    records = [one for one in outcomes if isinstance(one, SeriesRecord)]
    for series, one in zip(found.series, outcomes, strict=True):
        if not isinstance(one, SeriesRecord):
            summary.add([one if isinstance(one, Failure) else Failure.of(series, "features", one)], say)
    return records
