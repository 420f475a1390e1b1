"""What failed in a step: a series, a model or the step itself, with the reason."""

from collections.abc import Iterable
from typing import Any, Literal

from schemas.base import Record
from schemas.identity import ModelId, SeriesId

StepName = Literal[
    "ingest",
    "features",
    "plan",
    "train",
    "evaluate",
    "promote",
    "publish",
    "forecast",
    "score",
    "watch",
    "prune",
]
"""The steps of the DAG in the order of the data flow, then the steps at the end of a nightly run."""

STALE = "stale"
"""Code of the failure of a series whose candles or forecast are too old: a problem, but no step has failed."""

WRONG_ALERT = "alerts"
"""Code of the failure of a line of `HOME/alerts` that cannot be read."""


class Failure(Record):
    """A series or model that failed in a step, and the reason. `code`: the error's code, for programs."""

    step: StepName
    reason: str
    code: str = "error"
    series: SeriesId | None = None
    model: ModelId | None = None

    @classmethod
    def of(cls, subject: SeriesId | ModelId | None, step: StepName, error: Exception | str) -> "Failure":
        """Return the failure of a series or model (None: of the whole step) with an error's reason and code."""
        model = subject if isinstance(subject, ModelId) else None
        series = model.series if model else subject
        assert not isinstance(series, ModelId)
        # an exception without a text would leave an empty reason
        reason = str(error) if isinstance(error, str) or str(error) else type(error).__name__
        code = getattr(error, "code", "error" if isinstance(error, str) else "unexpected")
        return cls(step=step, reason=reason, code=code, series=series, model=model)

    @property
    def subject(self) -> str:
        """What failed, for messages: `har/BTCUSDT/1h (default)`, `BTCUSDT 1h` or `the run`."""
        return f"{self.model} ({self.model.recipe})" if self.model else str(self.series or "the run")

    @property
    def line(self) -> str:
        """The failure as a line: subject, step and reason."""
        return f"{self.subject} in {self.step}: {self.why}"

    @property
    def why(self) -> str:
        """The reason without the subject's name in front of it."""
        reason = self.reason
        for name in (self.model, self.series):
            reason = reason.removeprefix(f"{name}: ")
        return reason

    def as_json(self) -> dict[str, Any]:
        """Return a flat dict, as in the output of `--json`."""
        model = self.model
        return {
            **{name: getattr(self.series, name, None) for name in ("market", "symbol", "timeframe")},
            "architecture": model.architecture if model else None,
            "preset": model.recipe if model else None,
            "step": self.step,
            "reason": self.reason,
            "code": self.code,
        }


def _alike(failures: Iterable[Failure]) -> list[list[Failure]]:
    """Return the failures by step and reason: a source that is down fails each coin with the same words."""
    alike: dict[tuple[str, str], list[Failure]] = {}
    for failure in failures:
        alike.setdefault((failure.step, failure.why), []).append(failure)
    return [*alike.values()]


def failure_lines(failures: Iterable[Failure], named: int = 5) -> list[str]:
    """Return a line for each step and reason, with up to `named` of the subjects that failed alike."""
    lines = []
    for same in _alike(failures):
        more = f" and {len(same) - named} more" if len(same) > named else ""
        subjects = ", ".join(failure.subject for failure in same[:named])
        lines.append(f"{subjects}{more} in {same[0].step}: {same[0].why}")
    return lines


def reasons(failures: Iterable[Failure], limit: int = 3) -> str:
    """Return the failures in one sentence, "" without any: the first of each step and reason, up to `limit` of them."""
    lines = [
        first.line + (f" (and {len(others)} more)" if others else "") for first, *others in _alike(failures)
    ]
    more = len(lines) - limit
    return "; ".join(lines[:limit]) + (f"; and {more} more" if more > 0 else "")
