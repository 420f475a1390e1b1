"""The records that steps hand to one another: names, digests and figures, never frames, tensors or loose JSON.

Paths in them are relative to the home (`CPB_HOME`), so that a record means the same under any store. They are read
and written by `tasks.storage.records` alone.
"""

from datetime import datetime
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, model_validator

from schemas.identity import ModelId, SeriesId

Step = Literal[
    "ingest", "features", "plan", "train", "evaluate", "promote", "publish", "forecast", "score", "watch",
    "trial", "prune",
]  # fmt: skip
"""The steps of the DAG in the order in which data passes them, then what a nightly run does at its end."""

Span = tuple[datetime, datetime]


class Record(BaseModel):
    """What a step hands on. `version` counts changes of its fields; a file of another version is not read."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=True)

    version: ClassVar[int] = 1


class Failure(Record):
    """One series, or one model, that could not go on in one step, and why. `code` is the error's, for programs."""

    step: Step
    reason: str
    code: str = "error"
    series: SeriesId | None = None
    model: ModelId | None = None

    @model_validator(mode="after")
    def _one_subject(self) -> "Failure":
        if self.model and self.series != self.model.series:
            raise ValueError("a failure of a model is a failure of that model's series")
        return self

    @classmethod
    def of(cls, subject: SeriesId | ModelId | None, step: Step, error: Exception | str) -> "Failure":
        """Return the failure of a series or a model (None: of the step as a whole) with an error's reason and code."""
        model = subject if isinstance(subject, ModelId) else None
        series = model.series if model else subject
        assert not isinstance(series, ModelId)
        reason = str(error) if isinstance(error, str) or str(error) else type(error).__name__
        code = getattr(error, "code", "error" if isinstance(error, str) else "unexpected")
        return cls(step=step, reason=reason, code=code, series=series, model=model)

    @property
    def subject(self) -> str:
        """What failed, for messages: `har/BTCUSDT/1h`, `BTCUSDT 1h` or `all series`."""
        return str(self.model or self.series or "all series")

    def as_json(self) -> dict[str, Any]:
        """Return it flat, as `--json` shows it."""
        series = self.series
        return {
            "market": series.market if series else None,
            "symbol": series.symbol if series else None,
            "timeframe": series.timeframe if series else None,
            "architecture": self.model.architecture if self.model else None,
            "step": self.step,
            "reason": self.reason,
            "code": self.code,
        }


class IngestResult(Record):
    """What ingestion left in the store: the series that can be read, and those that failed."""

    series: tuple[SeriesId, ...]
    failures: tuple[Failure, ...] = ()
    requests: int = 0
    seconds: float = 0.0


class SeriesRecord(Record):
    """Features of one series on disk. `digest` is of the candles behind them, `file_digest` of the file's bytes.

    `first_us`, `last_us`: open times of the first and last candle, µs UTC. `runs`: the same of every run of candles
    without a hole between them; empty where there is one run.
    """

    version: ClassVar[int] = 2

    series: SeriesId
    path: str
    digest: str
    file_digest: str
    rows: int
    first_us: int
    last_us: int
    runs: tuple[tuple[int, int], ...] = ()

    def candles_in(self, span: Span) -> int:
        """Return how many candles open within `[start, end)`."""
        step = self.series.seconds * 1_000_000
        start, end = (round(instant.timestamp() * 1e6) for instant in span)
        runs = self.runs or ((self.first_us, self.last_us),)
        within = (
            (-(-(max(first, start) - first) // step), (min(last, end - 1) - first) // step)
            for first, last in runs
        )
        return sum(max(0, last - first + 1) for first, last in within)


class SplitBounds(Record):
    """Half-open UTC spans `[start, end)` of candle open times, one set for a whole timeframe."""

    timeframe: str
    train: Span
    validation: Span
    test: Span

    def items(self) -> list[tuple[str, Span]]:
        """Return (name, span) of train, validation and test."""
        return [("train", self.train), ("validation", self.validation), ("test", self.test)]


class JobMember(Record):
    """One series of a fleet, in one fold (0: no folds), with the spans that it learns and is judged on."""

    model: ModelId
    features: SeriesRecord
    bounds: SplitBounds
    fold: int = 0
    continues: str | None = None
    """Model folder (relative to the home, or absolute in MLflow's artifacts) to start from."""

    @property
    def name(self) -> str:
        """Name of the member's folder: `BTCUSDT-1h`, in a backtest `BTCUSDT-1h-fold-2`."""
        return f"{self.model.series.name}-fold-{self.fold}" if self.fold else self.model.series.name


class ShardJob(Record):
    """What one trainer is to learn, a fleet or a shard of it, so complete that its digest (`key`) names the result.

    `architecture` may end in `-universal`: one model learns all series of a timeframe (and fold).
    `seeds`: how often each model is trained; the copies are averaged into one. `code`: digest of the source that
    decides a trained model, with the package of an architecture that is not built in. `kernels`: whether
    `cpbmodels.kernels` may be used, whose results differ from torch's by rounding.
    """

    version: ClassVar[int] = 2

    architecture: str
    preset: str
    seeds: int
    overrides: dict[str, Any]
    device: str
    profile: str
    dtype: str
    members: tuple[JobMember, ...]
    code: str
    kernels: bool = True


class FleetPlan(Record):
    """All models of one architecture, cut into the shards that are trained one by one, wherever there is room.

    `key`: digest of the shards' keys. A fleet is one run in MLflow and one row of the leaderboard; a shard is a folder
    on disk.
    """

    key: str
    architecture: str
    shards: tuple[ShardJob, ...]

    @property
    def members(self) -> tuple[JobMember, ...]:
        """The members of all shards, in their order."""
        return tuple(member for shard in self.shards for member in shard.members)


class TrainedMember(Record):
    """One trained model: `files` maps the names in its folder to their sha256.

    `history`: one dict per epoch (`train_loss val_loss lr`); `report`: figures of the training as a whole.
    """

    model: ModelId
    name: str
    files: dict[str, str]
    history: tuple[dict[str, Any], ...]
    report: dict[str, Any]
    flat_band: float | None = None
    """Half-width of the class `flat` of a classifier, in log-return."""


class DeviceWork(Record):
    """When a shard's device was at work. `device`: a GPU's UUID, "" for a CPU.

    `begin`, `end`: of its first and last batch, in seconds since 1970. `busy_s`: seconds between in which a batch of
    training, validation or prediction was in flight. `cpu_s`: of processor time of the trainer.
    """

    device: str
    begin: float
    end: float
    busy_s: float
    cpu_s: float


class ShardResult(Record):
    """What became of a `ShardJob`: the members that can be used, and a failure for each other one.

    `epochs`: per epoch, from 1, seconds, windows/s, memory in MB and utilisation in percent of the whole job.
    """

    version: ClassVar[int] = 2

    key: str
    architecture: str
    members: tuple[TrainedMember, ...] = ()
    failures: tuple[Failure, ...] = ()
    train_seconds: float = 0.0
    work: DeviceWork | None = None
    epochs: tuple[dict[str, float], ...] = ()


class Judgement(Record):
    """One model's score on its test span, and the run that it was logged as. `validation_crps_ratio` ranks the recipes.

    `shard`: key of the job that trained it, whose folder holds its files. `files` maps the names in its model folder to
    their sha256, as they were logged.
    """

    model: ModelId
    shard: str
    run_id: str
    metrics: dict[str, float]
    verdict: str
    files: dict[str, str] = {}


class FleetJudgement(Record):
    """A fleet that was judged and logged: its run, a judgement per good member, a failure per other one."""

    key: str
    architecture: str
    run_id: str
    judgements: tuple[Judgement, ...] = ()
    failures: tuple[Failure, ...] = ()


class ModelRef(Record):
    """A model as a decision names it: its registered version ("" where it has none), its run and its recipe."""

    version_number: str = ""
    run_id: str = ""
    recipe: str = ""

    def __str__(self) -> str:
        """Return it for messages: `version 3 (har/default/3f9a12c0d4e5)`."""
        return f"version {self.version_number} ({self.recipe})" if self.version_number else self.recipe


class Compared(Record):
    """Two models on the same rows, which neither has learnt or chosen from.

    `first`, `last`: UTC closes of the last candle known at the first and last of `n` origins. `ratio`: candidate's CRPS
    over the incumbent's, with its 95 % interval.
    """

    first: datetime
    last: datetime
    n: int
    ratio: float
    low: float
    high: float

    def __str__(self) -> str:
        """Return the figures: `CRPS ratio 0.9991 [0.9975, 1.0008] on 2851 rows from 2025-02-06 to 2025-06-05`."""
        return (
            f"CRPS ratio {self.ratio:.4f} [{self.low:.4f}, {self.high:.4f}] on {self.n} rows from "
            f"{self.first:%Y-%m-%d} to {self.last:%Y-%m-%d}"
        )


class PairEvidence(Record):
    """How far the evidence of a challenger against the champions' recipe has come.

    `e`: e-value after `origins` origins, `days` days after the challenger was appointed; it is switched to at
    `threshold`, one over its share of alpha as the `k`-th pair of its timeframe.
    """

    challenger: str
    incumbent: str
    e: float
    threshold: float
    k: int
    origins: int
    days: float

    def __str__(self) -> str:
        """Return it for messages."""
        return (
            f"challenger {self.challenger}: e-value {self.e:.3g} of {self.threshold:.3g} after {self.origins} "
            f"origins, day {self.days:.0f}"
        )


Outcome = Literal["first", "refreshed", "switched", "kept", "unchanged", "forced", "retired"]

MOVED: tuple[Outcome, ...] = ("first", "refreshed", "switched", "forced")
"""Outcomes after which the alias `champion` points at another version than before."""


class Decision(Record):
    """Who serves a series after a run, and why.

    `version_number` is that of the champion which stands after it (`retired`: of the one that lost the alias). `rule`
    names the rule of the gate that decided (docs/promotion.md); `reason` says it in one sentence.
    """

    version: ClassVar[int] = 2

    series: SeriesId
    outcome: Outcome
    rule: str
    version_number: str
    candidate: ModelRef | None = None
    incumbent: ModelRef | None = None
    compared: Compared | None = None
    evidence: PairEvidence | None = None
    reason: str = ""
    decided_at: datetime

    @property
    def moved(self) -> bool:
        """Whether the series has another champion than before."""
        return self.outcome in MOVED


class Trials(Record):
    """What came of the challengers' trials after a scoring: switches, and what could not be looked at."""

    decisions: tuple[Decision, ...] = ()
    failures: tuple[Failure, ...] = ()


class ForecastBatch(Record):
    """Forecasts issued: new rows, rows that stand (new or there already), the series they are of, and the failures.

    All of champions; `shadow`: new rows of challengers, which forecast beside them. `fallbacks`: series that the
    fallback of a drifted champion has forecast as well.
    """

    rows: int = 0
    standing: int = 0
    shadow: int = 0
    series: tuple[SeriesId, ...] = ()
    fallbacks: tuple[SeriesId, ...] = ()
    failures: tuple[Failure, ...] = ()


class Publication(Record):
    """Where the champions of a market were published, and those that were left out because they are damaged."""

    place: str
    failures: tuple[Failure, ...] = ()


class Damage(Record):
    """A stored file that is not what was written: where (relative to the home), why, and what makes it good again.

    `repaired`: it has been made or fetched again, or deleted or set aside so that a later command makes it again.
    `outcome` says which of these, in words; "" where nothing was done.
    """

    path: str
    reason: str
    command: str
    repaired: bool = False
    outcome: str = ""


class Score(Record):
    """Forecast rows scored because their candle has closed, and the series that could not be scored."""

    rows: int = 0
    failures: tuple[Failure, ...] = ()


class Alarm(Record):
    """What the drift watch finds of one champion.

    `state`: `fine`; `watch`, for some evidence, an unusual input or late data; `drifted`. `evidence` by claim, which
    add up: `bands` (misses at step 1) and `crps`; from `threshold` on the champion has drifted, `since` when.
    `forecasts`: how many have been taken in. `stability`: population stability index by column of the model, the last
    30 days against the training span.
    """

    series: SeriesId
    state: Literal["fine", "watch", "drifted"]
    reason: str
    model_version: str
    evidence: dict[str, float]
    threshold: float
    forecasts: int = 0
    since: datetime | None = None
    stability: dict[str, float] = {}

    @property
    def total(self) -> float:
        """All evidence together."""
        return sum(self.evidence.values())

    def __str__(self) -> str:
        """Return it as one sentence."""
        since = f" since {self.since:%Y-%m-%d %H:%M} UTC" if self.since else ""
        why = f": {self.reason}" if self.reason else ""
        return f"{self.series} is {self.state}{since}{why}"


class Watching(Record):
    """What the drift watch finds of the champions, and the series that it could not look at."""

    alarms: tuple[Alarm, ...] = ()
    failures: tuple[Failure, ...] = ()
