"""Calling flows and their steps: by Prefect's engine, or directly if no Prefect server is configured.

Retries, concurrency and time limits belong to the step (`tasks.running.step`), so both modes behave alike. The direct
mode needs no server, starts immediately, and leaves no open run when it is killed. Also what a run says: its summary
and its lines.
"""

import inspect
import itertools
import logging
import shlex
import socket
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar
from urllib.parse import urlsplit

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext, TaskRunContext
from prefect.logging.handlers import APILogHandler
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, get_current_settings, temporary_settings
from prefect.states import Failed

from cpbmodels.errors import printable
from flows.console import LINES, continue_without_reader, shown_progress
from flows.ops.passwords import password_file
from flows.ops.ports import hold
from schemas.base import Spec
from schemas.decision import Decision
from schemas.errors import EXIT_COMPLETE, EXIT_PARTIAL, CpbError, counted, log
from schemas.failure import Failure, reasons
from schemas.handover import FleetPlan, SeriesRecord, ShardResult
from schemas.presets import SEED
from schemas.run import RunSpec
from schemas.scope import ScopeSpec
from tasks.running.parallel import run_each
from tasks.running.progress import PrintLine, report_progress, reporting
from tasks.running.step import Step
from tasks.steps import features, ingest
from tasks.storage.urls import public_url, without_credentials
from tasks.tracking.store_errors import store_errors
from tasks.tracking.tags import COMPLETE, PARTIAL, REASON

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound=Spec)

ANSWER_WITHIN_S = 5.0

NOT_YET = "Not yet"
"""Name of the state (of type Completed) of a scheduled forecast that runs before the first training has ended."""

STALE = "stale"
"""Code of the failure of a series whose candles or forecast are too old: a problem, but no step has failed."""

STANDING = "standing"
"""Code of the failure of a series that was asked for alone and whose last candles stand still."""

_HELD: dict[int, socket.socket] = {}
"""The ports that this process holds."""


@dataclass
class Summary:
    """Result of a run of the main job: counts, and every failure once.

    `results`: path of the market's `results.json`. `stopped`: series no longer traded; they are left out, which is not
    a failure. `warnings`: about the trainings, such as a shortage of memory. `fleets`: each fleet's cost
    (`flows.costs.fleet_cost`) and, of classifiers, its accuracy.
    """

    run_id: str = ""
    series: int = 0
    members: int = 0
    champions: int = 0
    forecast_rows: int = 0
    results: str = ""
    published: str = ""
    stopped: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    fleets: list[dict[str, Any]] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """Exit code: 0 complete, 3 partial."""
        return EXIT_PARTIAL if self.failures else EXIT_COMPLETE

    @property
    def reasons(self) -> str:
        """The failures in one sentence, for the error of a run that cannot continue."""
        return reasons(self.failures)

    def outcome(self, tags: Mapping[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Return the outcome of the run in MLflow, and its tags: `tags`, and the reasons of a partial run."""
        ended = PARTIAL if self.failures else COMPLETE
        return ended, dict(tags or {}) | {REASON: self.reasons or None}

    def add(self, failures: Iterable[Failure], report: PrintLine) -> None:
        """Add failures and print each."""
        for failure in failures:
            self.failures.append(failure)
            report(f"FAILED {failure.line}")

    def as_json(self) -> dict[str, Any]:
        """Return the object that `--json` prints."""
        return vars(self) | {"failures": [f.as_json() for f in self.failures], "exit": self.exit_code}


def decision_lines(decisions: Iterable[Decision]) -> list[str]:
    """Return the lines about the gate's decisions: the number of each outcome, and the reasons.

    Decisions with the same outcome and rule share a line: a first training makes forty champions for the same reason.
    """
    counts = Counter(decision.outcome for decision in decisions)
    numbers = ", ".join(f"{number} {outcome}" for outcome, number in counts.most_common())
    lines = [f"champions: {numbers}"] if counts else []
    alike: dict[tuple[str, str], list[Decision]] = defaultdict(list)
    for decision in decisions:
        alike[decision.outcome, decision.rule].append(decision)
    for first, *others in alike.values():
        more = f" (and {len(others)} more)" if others else ""
        lines.append(f"{first.outcome} {first.series}{more}: {first.reason}")
    return lines


def fleet_warnings(shards: Sequence[ShardResult]) -> list[str]:
    """Return the distinct warnings about a fleet's members, each with the number of members it applies to."""
    members = [member for shard in shards for member in shard.members]
    texts = Counter(text for member in members for text in member_warnings(member.report))
    return [
        text if times == len(members) else f"{text} ({times} of {counted(len(members), 'member')})"
        for text, times in texts.items()
    ]


def member_warnings(report: dict[str, Any]) -> list[str]:
    """Return the warnings in the report of a member's training (`TrainedMember.report`)."""
    warnings = []
    if report.get("stopped") == "nan":
        warnings.append(f"stopped early: {report['reason']}")
    if at_once := report.get("halved_to"):
        warnings.append(f"memory ran out: the fleet was halved, to {counted(at_once, 'model')} at once")
    if parts := report.get("split_to"):  # more than `accumulate` asked for
        warnings.append(f"memory ran out: each batch was split into {parts} parts")
    return [*warnings, *filter(None, [report.get("device_warning")])]


def profile_lines(spec: RunSpec, fleets: Iterable[FleetPlan]) -> list[str]:
    """Return a sentence for each preset of a run's fleets whose models the hardware profile has changed."""
    from cpbmodels.arch.options import ALIASES, PROFILE_SIZES

    typed = {ALIASES.get(name, name) for name in spec.overrides}
    sizes = {n: value for n, value in PROFILE_SIZES.get(spec.profile, {}).items() if n not in typed}
    lines = {}
    for job in (fleet.shards[0] for fleet in fleets):
        set_by_it = [f"{n} {value}" for n, value in sizes.items() if job.overrides.get(n) == value]
        if set_by_it and job.preset.startswith(SEED):
            lines[job.preset] = (
                f"profile {spec.profile} sets {', '.join(set_by_it)} of preset {job.preset}: "
                "other models than the preset's own"
            )
    return list(lines.values())


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
        then: Callable[[int, Any], None] = lambda index, result: None,
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
                result = call(*calls[index])
            except Exception as error:
                then(index, error)
                raise
            finally:
                if unit:
                    report_progress(step.name, next(done), len(calls), unit)
            then(index, result)
            return result

        with reporting(step.name, len(calls), unit) if unit else nullcontext():
            return run_each([partial(called, index) for index in range(len(calls))], at_once)

    def _call(self, step: Step[..., Any]) -> Callable[..., Any]:
        return step.in_prefect if self._prefect else step.fn


class RunLogHandler(APILogHandler):
    """Sends records to the flow run or task run of the calling thread; others are dropped.

    The lines are sent to Prefect's API handler directly: through Prefect's loggers they would appear on the terminal
    twice or not at all, depending on `quiet_libraries` and the user's settings.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Send a record; credentials in URLs are removed."""
        if FlowRunContext.get() or TaskRunContext.get():
            super().emit(record)

    def format(self, record: logging.LogRecord) -> str:
        """Return the text that the page shows, and Prefect's own logs."""
        return printable(without_credentials(super().format(record)))


RUN_LOG = RunLogHandler()


def plain_failures(flow: Callable[P, State]) -> Callable[P, State]:
    """Make a flow that raises an expected error end in the state Failed with its message, without a traceback.

    When the flow is called directly, Prefect raises the error again, so the command line prints the same message. The
    lines for people and the log messages of cpb (retries, damaged files) are sent to the run's log.
    """

    @wraps(flow)
    def run(*args: P.args, **kwargs: P.kwargs) -> State:
        continue_without_reader()
        hold_server()
        for logger in (log, LINES):
            logger.addHandler(RUN_LOG)
        try:
            with shown_progress("flow"), store_errors():
                return flow(*args, **kwargs)
        except CpbError as error:
            return Failed(message=without_credentials(str(error)), data=error)
        finally:
            for logger in (log, LINES):
                logger.removeHandler(RUN_LOG)

    return run


def flow_parameters(spec: type[S]) -> Callable[[Callable[[S], R]], Callable[..., R]]:
    """Give a flow function the fields of `spec` as its parameters and call it with the built spec.

        @flow(name="train-all", validate_parameters=False)
        @plain_failures
        @flow_parameters(RunSpec)
        def train_all(spec: RunSpec) -> State: ...

    Prefect reads a flow's signature for its run form and the `Args:` section of its docstring for the descriptions.
    `validate_parameters=False`: the specification validates the values, with its own messages.

    Raises (when the flow is called):
        UsageError: an invalid value, with the specification's message.
    """

    def decorate(function: Callable[[S], R]) -> Callable[..., R]:
        @wraps(function)
        def run(**parameters: Any) -> R:
            return function(spec(**parameters))

        declared = inspect.signature(spec).parameters
        defaults = {name: f.get_default(call_default_factory=True) for name, f in spec.model_fields.items()}
        parameters = [declared[name].replace(default=default) for name, default in defaults.items()]
        run.__dict__["__signature__"] = inspect.Signature(parameters)
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        described = [f"    {name}: {field.description}" for name, field in spec.model_fields.items()]
        run.__doc__ = "\n".join([inspect.getdoc(function) or "", "", "Args:", *described])
        return run

    return decorate


def server_in_use() -> bool:
    """Whether Prefect is configured to use a server; without one, flows run directly."""
    return bool(_api_url())


def hold_server() -> None:
    """Hold the port of a server of this machine that has a password, until this process ends.

    A flow run sends the password for hours, and its worker and server, which hold the port too, may die meanwhile. A
    server of another kind than `cpb deploy up`'s does not share its port: nothing can be held then.
    """
    api = get_current_settings().api
    with suppress(CpbError, ValueError):  # malformed: Prefect says so
        url = urlsplit(api.url or "")
        port = url.port or 80
        if api.auth_string and url.hostname in ("127.0.0.1", "localhost") and port not in _HELD:
            _HELD[port] = hold(port)


def check_server() -> None:
    """Send the configured server a request that needs credentials; errors as in `client_of_settings`."""
    with client_of_settings(ANSWER_WITHIN_S, retries=0) as client:
        client.request("POST", "/flows/filter", json={"limit": 1})


@contextmanager
def client_of_settings(timeout_s: float = 30, retries: int = 2) -> Iterator[SyncPrefectClient]:
    """Yield a client of the server in Prefect's settings.

    Raises:
        CpbError: the server cannot be reached (`server-unreachable`), rejects the credentials (`server-auth`), or
            answers with another error (`server-error`).
    """
    url = public_url(_api_url())
    try:
        with (
            temporary_settings({PREFECT_CLIENT_MAX_RETRIES: retries}),
            get_client(sync_client=True, httpx_settings={"timeout": timeout_s}) as client,
        ):
            yield client
    except httpx.HTTPStatusError as error:
        answer = error.response
        if answer.status_code in (401, 403):
            raise CpbError(
                f"the Prefect server at PREFECT_API_URL={url} refuses the credentials ({answer.status_code}); set "
                "them, for the server of `cpb deploy up` with: "
                f'export PREFECT_API_AUTH_STRING="$(cat {shlex.quote(str(password_file()))})"',
                code="server-auth",
                field="PREFECT_API_AUTH_STRING",
            ) from error
        raise CpbError(
            f"the Prefect server at {url} answered {answer.status_code} to {error.request.url.path}: "
            f"{answer.text[:300]}",
            code="server-error",
        ) from error
    except httpx.TransportError as error:
        raise CpbError(
            f"no Prefect server answers at PREFECT_API_URL={url} ({error or type(error).__name__}); start it, as with "
            "`cpb deploy up`, or take PREFECT_API_URL out of the environment or the Prefect profile to run without one",
            code="server-unreachable",
            field="PREFECT_API_URL",
        ) from error


def _api_url() -> str:
    return get_current_settings().api.url or ""


def in_prefect(flow: Callable[..., State], spec: Spec) -> dict[str, Any]:
    """Run a flow on the configured server, and return the same result as without a server."""
    hold_server()
    check_server()
    # A flow that is called directly returns the data of its final state.
    result: Any = flow(**spec.model_dump())
    return dict(result)


def series_records(spec: ScopeSpec, steps: Runner, report: PrintLine, summary: Summary) -> list[SeriesRecord]:
    """Ingest the scope and compute its features; failures and leaps of a price level are added to the summary."""
    ingested = steps.one(ingest, spec.scope, spec.tail)
    summary.add((*ingested.failures, *ingested.leaps), report)
    report(
        f"ingested {counted(len(ingested.series), 'series')} ({counted(ingested.requests, 'request')}, "
        f"{ingested.seconds:.1f} s)"
    )
    outcomes = steps.each(features, [(spec.scope, series) for series in ingested.series], "series")
    for series, outcome in zip(ingested.series, outcomes, strict=True):
        if isinstance(outcome, Exception):
            summary.add([Failure.of(series, "features", outcome)], report)
        elif isinstance(outcome, Failure):
            summary.add([outcome], report)
    return [outcome for outcome in outcomes if isinstance(outcome, SeriesRecord)]
