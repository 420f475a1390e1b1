"""Summary of a run of the main job, and its messages."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from schemas.errors import EXIT_COMPLETE, EXIT_PARTIAL
from schemas.handover import Decision, Failure

if TYPE_CHECKING:
    from tasks.forecasting.staleness import Stale

Say = Callable[[str], None]

NOT_YET = "Not yet"
"""Name of the state (of type Completed) of a scheduled forecast that runs before the first training has ended."""


@dataclass
class Summary:
    """Result of a run of the main job: counts, and every failure once."""

    run_id: str = ""
    series: int = 0
    members: int = 0
    champions: int = 0
    forecast_rows: int = 0
    published: str = ""
    stopped: list[str] = field(default_factory=list)
    """Series no longer traded; they are left out, which is not a failure."""
    warnings: list[str] = field(default_factory=list)
    """Warnings about the trainings, such as a shortage of memory."""
    failures: list[Failure] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """Exit code: 0 complete, 3 partial."""
        return EXIT_PARTIAL if self.failures else EXIT_COMPLETE

    @property
    def reasons(self) -> str:
        """The first three failures, for the error of a run that cannot continue."""
        return "; ".join(f"{failure.subject}: {plain_reason(failure)}" for failure in self.failures[:3])

    def add(self, failures: Iterable[Failure], say: Say) -> None:
        """Add failures and print each."""
        for failure in failures:
            self.failures.append(failure)
            say(f"FAILED {failure_line(failure)}")

    def as_json(self) -> dict[str, Any]:
        """Return the object that `--json` prints."""
        counts = {k: v for k, v in vars(self).items() if k != "failures"}
        return counts | {"failures": [f.as_json() for f in self.failures], "exit": self.exit_code}


def decision_lines(decisions: Iterable[Decision]) -> list[str]:
    """Return the lines about the gate's decisions: the number of each outcome, and the reasons.

    Decisions with the same outcome and rule share a line: a first training makes forty champions for the same reason.
    """
    counts = Counter(d.outcome for d in decisions)
    lines = (
        [f"champions: {', '.join(f'{n} {outcome}' for outcome, n in counts.most_common())}"] if counts else []
    )
    alike: dict[tuple[str, str], list[Decision]] = defaultdict(list)
    for one in decisions:
        alike[one.outcome, one.rule].append(one)
    for (outcome, _), found in alike.items():
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        lines.append(f"{outcome} {found[0].series}{more}: {found[0].reason}")
    return lines


def failure_line(failure: Failure) -> str:
    """Return a failure as a line: subject, step and reason."""
    return f"{failure.subject} in {failure.step}: {plain_reason(failure)}"


_STALE = "stale"


def stale_failure(found: "Stale") -> Failure:
    """Return candles or a forecast that are too old as a problem of a forecast run."""
    return Failure(step="forecast", reason=str(found), code=_STALE, series=found.series)


def problem_line(failure: Failure) -> str:
    """Return a problem as a line for people; stale candles are no failure of a step."""
    word = "STALE" if failure.code == _STALE else "FAILED"
    return f"{word} {failure.subject}: {plain_reason(failure)}"


def plain_reason(failure: Failure) -> str:
    """Return the reason without the subject's name if it starts with it."""
    for name in (str(failure.model), str(failure.series)):
        if failure.reason.startswith(f"{name}: "):
            return failure.reason.removeprefix(f"{name}: ")
    return failure.reason
