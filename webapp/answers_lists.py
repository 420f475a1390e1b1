"""What the API answers about several series, forecasts, models or runs at once. Times UTC."""

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, Field, computed_field

from schemas.handover import Decision
from schemas.identity import SIM, Market
from tasks.tracking.judged import JudgedModel
from webapp.answers import OfSeries


class OfMarket(BaseModel):
    """What is of one market."""

    market: Market

    @computed_field(description="prices of the built-in simulator, not of a market")  # type: ignore[prop-decorator]
    @property
    def simulated(self) -> bool:
        """Whether the prices are the simulator's."""
        return self.market == SIM


class MarketInfo(OfMarket):
    """A market that something is stored of."""

    series: int = Field(description="series with candles or forecasts")
    forecasts: int = Field(description="series with a forecast")


class OverviewRow(OfSeries):
    """One series at a glance; null is what is not known.

    `range_80_low`, `range_80_high`: the central 80 % of the newest forecast's last step, which is the close at
    `range_at`, in percent of the close that it was made from. `last_close` is the newest stored one, `change_1d` its
    change against the one a day before, in percent (null where there is
    none of that time). `verdict` is the champion's on its test span; `selected_on` the
    rows of it that its recipe was chosen on, which are no result then. `record_…`: what came true of this series' live
    forecasts, or of its replays where there are no live ones (`record_live`). `watch`: what the drift watch found
    last. `stale`: a sentence where candles or forecast are too old. `sparkline`: the newest
    closes, at most 48.
    """

    issued_at: datetime | None = None
    model_version: str | None = None
    last_close: float | None = None
    closed_at: datetime | None = Field(None, description="close of the newest stored candle")
    change_1d: float | None = None
    range_80_low: float | None = None
    range_80_high: float | None = None
    range_at: datetime | None = None
    architecture: str | None = None
    champion: str | None = Field(None, description="registered model and version of the champion")
    verdict: str | None = None
    selected_on: str | None = None
    crps_ratio: float | None = Field(None, description="of the champion on its test span")
    record_live: bool | None = None
    record_ratio: float | None = None
    record_low: float | None = None
    record_high: float | None = None
    record_verdict: str | None = None
    record_days: int | None = None
    watch: Literal["fine", "watch", "drifted"] | None = None
    watch_reason: str | None = None
    stale: str | None = None
    sparkline: list[float] = Field(default_factory=list)


class Overview(OfMarket):
    """All series of one market, those with a forecast first. `note`: what is missing and the command that makes it.

    `markets`: every market that something is stored of, the default one first.
    """

    rows: list[OverviewRow]
    note: str | None
    markets: list[MarketInfo]


class IssuedForecast(BaseModel):
    """One stored forecast. `live`: made before the first candle that it is about had closed; else a replay.

    `role`: `champion`, or `fallback` where one stands in for a champion that has drifted.
    """

    issued_at: datetime
    model_version: str
    role: str
    live: bool
    made_at: datetime | None


class Forecasts(OfSeries):
    """When forecasts of a series were issued, newest last; `until` of the next older page is before the first."""

    forecasts: list[IssuedForecast]


class Models(OfSeries):
    """The newest judged model of each architecture and preset, best CRPS ratio first; `note`: why there are none."""

    models: list[JudgedModel]
    note: str | None


class Decisions(OfSeries):
    """Who was to serve a series after each run, and why; newest first. `note` says why there are none."""

    decisions: list[Decision]
    note: str | None


class Training(OfMarket):
    """A fleet that is being trained now. Null where it is not known yet, as losses before an epoch has ended.

    `epochs`: at most so many; models that stop improving end earlier. `eta_seconds`: at this training's pace so far,
    without the forecasts and the judging that follow. Losses are means over the models that still train.
    """

    fleet: str
    architecture: str
    preset: str
    device: str
    members: int
    symbols: list[str]
    timeframes: list[str]
    since: datetime
    epoch: int | None = None
    epochs: int | None = None
    train_loss: float | None = None
    val_loss: float | None = None
    windows_per_s: float | None = None
    seconds_per_epoch: float | None = None
    eta_seconds: float | None = None


class FlowRun(OfMarket):
    """A run of the flow, as MLflow has it. `outcome`: complete, partial or failed; null while it runs or was killed.

    `status`: RUNNING, FINISHED, FAILED or KILLED, which a run is too whose process has died. `coins`, `timeframes` and
    `architectures` as they were asked for, so that coins may be `all`; empty where an older release did not say.
    `as_of`: no candle that closes after it was seen, as asked; else the day (UTC) of the newest candle.
    """

    run_id: str
    name: str
    status: str
    outcome: str | None
    started_at: datetime
    ended_at: datetime | None
    preset: str | None
    coins: list[str]
    timeframes: list[str]
    architectures: list[str]
    as_of: str | None
    reason: str | None


class Runs(BaseModel):
    """Trainings at work on this machine, and the newest runs of the flow; `note` says why there are no runs."""

    trainings: list[Training]
    runs: list[FlowRun]
    note: str | None


class Changes(BaseModel):
    """A token for each part of what is stored; one that differs from the last look says that the part has changed.

    `board`: MLflow's store (models, champions, decisions); `runs`: it and the trainings at work. A store that changes
    all the time is looked at every few seconds.
    """

    candles: str
    forecasts: str
    ledger: str
    board: str
    runs: str


class Figure(BaseModel):
    """A figure for plotly: `Plotly.newPlot(element, data, layout)`."""

    data: list[dict[str, object]]
    layout: dict[str, object]
