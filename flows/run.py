"""One run of a flow: what it has found so far, its run in MLflow, and how it ends.

A run is told to people (`tasks.notices`), marked in MLflow whatever ends it, and mirrored to Weights & Biases if asked.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from schemas.decision import Decision
from schemas.errors import EXIT_COMPLETE, EXIT_PARTIAL, CpbError, log
from schemas.failure import Failure, StepName, failure_lines, reasons
from schemas.handover import SeriesRecord
from schemas.ledger import Alarm
from schemas.run import RunSpec
from tasks.notices import Events, events_of, tell_end
from tasks.running.progress import PrintLine
from tasks.storage.interrupts import pause
from tasks.tracking.runs import finish, kill
from tasks.tracking.store_errors import UNUSABLE, store_errors
from tasks.tracking.tags import COMPLETE, FAILED, PARTIAL, REASON, WARNINGS
from tasks.tracking.wandb import mirror


class Partial(Protocol):
    """The result of a step that can fail in parts."""

    @property
    def failures(self) -> Sequence[Failure]:
        """The parts that failed."""


Result = TypeVar("Result", bound=Partial)
T = TypeVar("T")

AWAY = ("unreachable", UNUSABLE)
"""Codes of the errors that pass without anybody's help: the source of the candles or the MLflow store is away."""

_AS_JSON = (
    "run_id",
    "series",
    "members",
    "champions",
    "forecast_rows",
    "forecasts",
    "stale",
    "results",
    "published",
    "stopped",
    "warnings",
    "fleets",
)


@dataclass
class Run:
    """A run of the flow `name`: counts, every failure once, and what it has to tell; `report` prints its lines.

    `run_id`: of its run in MLflow, once it is open. `wandb_folder`: where W&B keeps its files, if the run is mirrored.
    `forecasts`: a row for each champion's newest (`tasks.forecasting.outlook`); `stale`: the sentence on those that are
    too old. `results`: path of the market's `results.json`. `stopped`: series no longer traded; they are left out,
    which is not a failure. `warnings`: about the trainings, such as a shortage of memory. `fleets`: each fleet's cost
    (`tasks.training.cost.fleet_cost`) and, of classifiers, its accuracy; `trained_before`: the names of those that
    earlier runs have trained. `listed`: its options with the exchange's pairs in place of `exchange`; `records`: the
    features that it is planned with. `alerts`: chances that passed the limits of `HOME/alerts`. `decided_before`: by
    earlier attempts.
    """

    name: str
    report: PrintLine
    run_id: str = ""
    series: int = 0
    members: int = 0
    champions: int = 0
    forecast_rows: int = 0
    forecasts: list[dict[str, Any]] = field(default_factory=list)
    stale: str = ""
    results: str = ""
    published: str = ""
    wandb_folder: Path | None = None
    listed: RunSpec | None = None
    records: Sequence[SeriesRecord] = ()
    stopped: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    fleets: list[dict[str, Any]] = field(default_factory=list)
    trained_before: list[str] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    decisions: Sequence[Decision] = ()
    decided_before: Sequence[Decision] = ()
    alarms: Sequence[Alarm] = ()
    alerts: Events = field(default_factory=dict)
    has_ended: bool = False

    @property
    def exit_code(self) -> int:
        """Exit code: 0 complete, 3 partial."""
        return EXIT_PARTIAL if self.failures else EXIT_COMPLETE

    @property
    def reasons(self) -> str:
        """The failures in one sentence, for the error of a run that cannot continue."""
        return reasons(self.failures)

    def tell(self, lines: Iterable[str]) -> None:
        """Print lines."""
        for line in lines:
            self.report(line)

    def add(self, failures: Iterable[Failure]) -> None:
        """Add failures, and print them, a line for each reason."""
        # At once, not at the end: who watches a night sees which series is lost while there is time to mend it.
        added = [*failures]
        self.failures += added
        self.tell(f"FAILED {line}" for line in failure_lines(added))

    def note(self, result: Result) -> Result:
        """Add the failures of a step's result, and return the result."""
        self.add(result.failures)
        return result

    @contextmanager
    def attempt(
        self, step: StepName, errors: tuple[type[Exception], ...] = (CpbError, OSError)
    ) -> Iterator[None]:
        """Make an expected error of the block a failure of the run, which goes on."""
        try:
            with store_errors():
                yield
        except errors as error:
            self.add([Failure.of(None, step, error)])

    def mark(self) -> None:
        """End the run in MLflow as complete, or as partial with the reasons of its failures."""
        # None takes nothing away: a continued run has lost its earlier reason when it was opened again.
        tags = {WARNINGS: "; ".join(self.warnings) or None, REASON: self.reasons or None}
        finish(self.run_id, PARTIAL if self.failures else COMPLETE, tags)

    def end(self) -> None:
        """End the run in MLflow, if it has one, and mirror it; `flow_run` does so unless the flow has done it."""
        if self.run_id:
            self.mark()
        # From here on `marked` leaves it as it is: an error or Ctrl-C in what follows takes back nothing.
        self.has_ended = True
        if self.run_id and self.wandb_folder and (problem := mirror(self.run_id, self.wandb_folder)):
            self.report(f"cpb: {problem}")

    @property
    def events(self) -> Events:
        """What people are to be told of the run, first what they have asked for."""
        decisions = (*self.decided_before, *self.decisions)
        return self.alerts | events_of(self.failures, decisions, self.alarms, self.stale)

    def begin_again(self) -> None:
        """Forget what an attempt has found, but for the pairs, the run that it has opened in MLflow, and its data."""
        again = Run(self.name, self.report, self.run_id, listed=self.listed)
        # The next attempt finds these champions serving: nobody would be told that they have changed.
        again.decided_before = (*self.decided_before, *self.decisions)
        if self.run_id:
            again.records = self.records
            again.failures = [failure for failure in self.failures if failure.step in ("ingest", "features")]
        vars(self).update(vars(again))

    def as_json(self) -> dict[str, Any]:
        """Return the object that `--json` prints."""
        shown = {name: getattr(self, name) for name in _AS_JSON}
        return shown | {"failures": [f.as_json() for f in self.failures], "exit": self.exit_code}


@contextmanager
def flow_run(name: str, report: PrintLine, *, notify: bool = False) -> Iterator[Run]:
    """Yield the run of a flow, and end it as the block ends.

    Args:
        notify: tell people about the run once it has ended, and call the heartbeat if it was complete. Nothing is told
            of a run that a person interrupted.
    """
    run = Run(name, report)
    try:
        # `marked` within: what it tells MLflow can fail too, and people are to read that as one sentence.
        with store_errors(), marked(run):
            yield run
            if not run.has_ended:
                run.end()
    except Exception as error:
        # The code, not the sentence, is the key of the event: a retry that fails alike tells nobody twice a day.
        if notify:
            code = getattr(error, "code", type(error).__name__)
            failed = {f"failed {name} {code}": str(error) or code}
            tell_end(name, failed | run.events, complete=False)
        raise
    if notify:
        tell_end(name, run.events, complete=not run.failures)


def until_reachable(run: Run, attempt: Callable[[], T], waits_s: Sequence[float]) -> T:
    """Return what an attempt at a run's work returns.

    Where network or store alone ended it, it is made again after each of these times.
    """
    for wait_s in waits_s:
        try:
            with store_errors():
                return attempt()
        except CpbError as error:
            if error.code not in AWAY:
                raise
            log.warning("%s is tried again in %.0f minutes: %s", run.name, wait_s / 60, error)
        run.begin_again()
        pause(wait_s)
    return attempt()


@contextmanager
def marked(run: Run) -> Iterator[None]:
    """Mark the run in MLflow as failed with the reason if an error ends the block, as killed if an interrupt does.

    One that has ended stays as it is.
    If the store itself is unavailable, the run stays open; the next cpb process that writes to the store marks it as
    killed. Interrupts (Ctrl-C, the signal with which Prefect cancels a run) are not subclasses of `Exception`.
    """
    try:
        with store_errors():
            yield
    except Exception as error:
        # otherwise this would wait for the unavailable store again
        if run.run_id and not run.has_ended and getattr(error, "code", "") != UNUSABLE:
            finish(run.run_id, FAILED, {REASON: str(error) or type(error).__name__})
            run.has_ended = True
        raise
    except BaseException as interrupt:
        # An interrupt before the plan has opened nothing.
        if run.run_id and not run.has_ended:
            kill(run.run_id, f"interrupted ({type(interrupt).__name__})")
            run.has_ended = True
        raise
