"""Records passed between steps: names, digests and figures, never frames, tensors or untyped JSON.

Their paths are relative to the home (`CPB_HOME`), so that a record stays valid when the store is moved. Only
`tasks.storage.records` reads and writes them.
"""

from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from schemas.base import Record
from schemas.failure import Failure
from schemas.fleets import FleetSpec
from schemas.identity import ModelId, SeriesId

Span = tuple[datetime, datetime]


class IngestResult(Record):
    """Result of ingestion: the series that can be read from the store, the failures, and the leaps of a price level.

    A series with a leap is trained on, in segments: it is no failure of a forecast, but makes a training partial.
    """

    series: tuple[SeriesId, ...]
    failures: tuple[Failure, ...] = ()
    leaps: tuple[Failure, ...] = ()
    requests: int = 0
    seconds: float = 0.0


class SeriesRecord(Record):
    """The feature file of a series. `digest`: of the candles it is computed from; `file_digest`: of its bytes.

    `first_us`, `last_us`: open times of the first and last candle, µs UTC. `runs`: the same two times for each run of
    candles without gaps; empty if there is a single run.
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
        """Return the number of candles that open within `[start, end)`."""
        step = self.series.seconds * 1_000_000
        start, end = (round(instant.timestamp() * 1e6) for instant in span)
        runs = self.runs or ((self.first_us, self.last_us),)
        # of each run the first and the last candle at or after `start` and before `end`, counted from its first
        within = (
            (-(-(max(first, start) - first) // step), (min(last, end - 1) - first) // step)
            for first, last in runs
        )
        return sum(max(0, last - first + 1) for first, last in within)


class SplitBounds(Record):
    """Half-open UTC spans `[start, end)` of candle open times, shared by all series of a timeframe."""

    timeframe: str
    train: Span
    validation: Span
    test: Span

    def items(self) -> list[tuple[str, Span]]:
        """Return (name, span) of train, validation and test."""
        return [("train", self.train), ("validation", self.validation), ("test", self.test)]


class JobMember(Record):
    """A series of a fleet in a fold (0: no folds), with the spans it is trained and judged on."""

    model: ModelId
    features: SeriesRecord
    bounds: SplitBounds
    fold: int = 0

    @property
    def name(self) -> str:
        """Name of the member's folder: `BTCUSDT-1h`, in a backtest `BTCUSDT-1h-fold-2`."""
        return f"{self.model.series.name}-fold-{self.fold}" if self.fold else self.model.series.name


class ShardJob(Record):
    """Complete input of a trainer, for a fleet or a shard of it; its digest (`key`) identifies the result.

    `architecture` may end in `-universal`: a single model learns all series of a timeframe (and fold).
    `seeds`: how many copies of each model are trained and then averaged. `code`: digest of the source code that
    determines a trained model. `kernels`: whether
    `cpbmodels.kernels` may be used, whose results differ from torch's by rounding.
    """

    version: ClassVar[int] = 3

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

    @property
    def spec(self) -> FleetSpec:
        """What makes its models."""
        return FleetSpec(
            architecture=self.architecture,
            preset=self.preset,
            overrides=self.overrides,
            seeds=self.seeds,
            dtype=self.dtype,
        )


class FleetPlan(Record):
    """All models of an architecture and its options, split into shards that are trained separately, on any free device.

    `key`: digest of the shards' keys. `name`: the architecture where it is the run's only fleet of it, else with the
    label of its preset, `gru/seed-gru`. A fleet is a run in MLflow and a row of the leaderboard; a shard is a folder on
    disk.
    """

    key: str
    name: str
    architecture: str
    shards: tuple[ShardJob, ...]

    @property
    def members(self) -> tuple[JobMember, ...]:
        """The members of all shards, in their order."""
        return tuple(member for shard in self.shards for member in shard.members)

    @property
    def spec(self) -> FleetSpec:
        """What makes its models; the shards differ only in their members."""
        return self.shards[0].spec

    @property
    def label(self) -> str:
        """The preset's label, as in the members' recipes: `smoke`, `smoke+1f0c2a3b`."""
        return self.members[0].model.recipe


class TrainingPlan(Record):
    """The series that can be trained, the fleets, and why other series, or recipes that serve, are left out.

    `stopped`: series no longer traded, which is not a failure.
    """

    series: tuple[SeriesRecord, ...]
    fleets: tuple[FleetPlan, ...]
    failures: tuple[Failure, ...]
    stopped: tuple[SeriesRecord, ...]


class TrainedMember(Record):
    """A trained model; `name`: of its folder, which has a seal of its own (`tasks.storage.sealed`).

    `history`: a dict per epoch (`train_loss val_loss lr`); `report`: figures of the whole training.
    """

    model: ModelId
    name: str
    history: tuple[dict[str, Any], ...]
    report: dict[str, Any]
    flat_band: float | None = None
    """Half-width of the class `flat` of a classifier, in log-return."""


class DeviceWork(Record):
    """Usage of a shard's device. `device`: a GPU's UUID, "" for a CPU.

    `begin`, `end`: from the first candles on the device to the last file of the shard, in seconds since 1970. `busy_s`:
    seconds in between during which a GPU ran a kernel, by its driver; None on a CPU, and where the driver does not say.
    `cpu_s`: the trainer's processor time.
    """

    device: str
    begin: float
    end: float
    busy_s: float | None
    cpu_s: float


class ShardProgress(Record):
    """Where a shard stood when an epoch of some of its models ended.

    `architecture`: what was trained, in stage `stage` of `stages`: an average trains its members one after the other.
    Of the shard in this stage: `epoch`, the mean over its `models`, copies included (a model that has stopped counts
    with those that it trains with), of at most `epochs`, which is 0 for what is fitted without epochs; `train_loss` and
    `val_loss`, means over the `begun` models that have a finite loss, each at its last epoch; `ended`: no model goes
    on. `cores`: those that the trainer may use.
    """

    architecture: str
    stage: int
    stages: int
    epoch: float
    epochs: int
    models: int
    begun: int
    train_loss: float | None
    val_loss: float | None
    ended: bool
    cores: int


class Epoch(ShardProgress):
    """An epoch of models that train together: where their shard stood then, and what it cost.

    `metrics`: of the models that trained in it, by their names in MLflow: `epoch` from 1, seconds, windows/s, memory in
    MB, utilisation in percent, mean losses.
    """

    metrics: dict[str, float]


class ShardResult(Record):
    """Result of a `ShardJob`: the usable members, and a failure for each other member.

    `epochs`: per epoch, from 1, the whole job's seconds, windows/s, memory in MB and utilisation in percent.
    `progress`: where the shard stood after each of them; empty in a result of an older cpb.
    """

    version: ClassVar[int] = 3

    key: str
    architecture: str
    members: tuple[TrainedMember, ...] = ()
    failures: tuple[Failure, ...] = ()
    train_seconds: float = 0.0
    work: DeviceWork | None = None
    epochs: tuple[dict[str, float], ...] = ()
    progress: tuple[ShardProgress, ...] = ()

    @property
    def reported(self) -> tuple[Epoch, ...]:
        """The epochs as the trainer reported them."""
        # a result of an older cpb has epochs without progress
        pairs = zip(self.progress, self.epochs, strict=False)
        return tuple(Epoch(**progress.model_dump(), metrics=metrics) for progress, metrics in pairs)


class Judgement(Record):
    """A model's metrics on its test span and its MLflow run; the metric `validation_crps_ratio` ranks the recipes.

    `folder`: the trained member's on this machine, with the model's files and its scores. `features`: its series'.
    `fleet`: what makes the model.
    """

    model: ModelId
    folder: Path
    features: SeriesRecord
    run_id: str
    metrics: dict[str, float]
    verdict: str
    fleet: FleetSpec


class FleetJudgement(Record):
    """A judged and logged fleet: its run, a judgement per usable member, a failure per other member.

    `skill`: by timeframe, 100 × (1 − pooled CRPS ratio) on the test span; a classifier's of its ranked probability
    score.
    """

    key: str
    architecture: str
    run_id: str
    skill: dict[str, float] = Field(default_factory=dict)
    judgements: tuple[Judgement, ...] = ()
    failures: tuple[Failure, ...] = ()


class Issued(Record):
    """The model that forecast a series: registered model and version, and its verdict, of one reading of its folder."""

    series: SeriesId
    model_version: str
    verdict: str


class ForecastBatch(Record):
    """Forecasts issued: new rows, `total_rows`: with those already stored, and the failures."""

    rows: int = 0
    total_rows: int = 0
    issued: tuple[Issued, ...] = ()
    failures: tuple[Failure, ...] = ()

    @property
    def series(self) -> tuple[SeriesId, ...]:
        """The series that were forecast."""
        return tuple(about.series for about in self.issued)


class Publication(Record):
    """The place where a market's champions were published, and the champions left out because they are damaged."""

    place: str
    failures: tuple[Failure, ...] = ()


class Damage(Record):
    """A damaged file: its path (relative to the home), the reason, and what makes or fetches it again."""

    path: str
    reason: str
    command: str
