"""Responses of the API, typed so that `/openapi.json` describes them. Times UTC, prices in the quote currency."""

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, computed_field, create_model
from typing_extensions import TypedDict

from cpbmodels.data.prediction import MEDIAN_COLUMNS, QUANTILE_COLUMNS
from schemas.decision import Decision
from schemas.identity import SIM, Market
from schemas.ledger import Alarm, LedgerEntry
from tasks.tracking.flow_runs import FlowRunInfo
from tasks.tracking.judged_models import JudgedModel


class OfMarket(BaseModel):
    """Fields of a response about a market."""

    market: Market

    @computed_field(description="prices of the built-in simulator, not of a market")  # type: ignore[prop-decorator]
    @property
    def simulated(self) -> bool:
        """Whether the prices are the simulator's."""
        return self.market == SIM


class OfSeries(OfMarket):
    """First fields of every response about a series."""

    symbol: str
    timeframe: str


class Health(BaseModel):
    """State of the service: `series`, the number of series with a forecast, and stale data.

    `stale`: real candles or forecasts more than two intervals behind Binance's published data, a sentence each.
    `standing`: a sentence for each series of which the last candles before the newest forecast stand still. `empty`:
    nothing is stored yet. Simulated series only count if there are no others.
    """

    status: Literal["ok", "stale", "empty"]
    series: int
    newest_forecast: datetime | None
    stale: list[str] = []
    standing: list[str] = []


class SeriesInfo(OfSeries):
    """A series in the store; `issued_at` is null if it only has candles."""

    issued_at: datetime | None
    model_version: str | None


class _Step(BaseModel):
    """A step ahead: quantiles of the close, and the median candle (its close is `q50`)."""

    step: int
    target_time: datetime


_prices: dict[str, Any] = dict.fromkeys((*QUANTILE_COLUMNS, *MEDIAN_COLUMNS), (float, ...))
Step = create_model("Step", __base__=_Step, **_prices)


class Forecast(OfSeries):
    """The newest stored forecast of a series; `issued_at` is the close of the last candle used.

    `weights_sha256`: of the weights that made it. `standing`: number of candles that stand still (open = high = low =
    close, volume 0), counted back from the last candle used; `standing_note`: a sentence from six on. Both are null in
    forecasts stored by older versions.
    """

    issued_at: datetime
    model_version: str
    last_close: float
    weights_sha256: str | None
    standing: int | None
    standing_note: str | None
    steps: list[Step]


class Reached(TypedDict):
    """The chance that the high (`side` up) or the low (down) of a candle reaches a price until a time."""

    price: float
    side: Literal["up", "down"]
    probability: float
    by: datetime


class Decided(TypedDict):
    """The chances that a target and that a stop is reached first until a time, and that neither is reached.

    A candle that reaches both counts for the stop. `side`: long if the target is the higher price, else short.
    """

    target: float
    stop: float
    side: Literal["long", "short"]
    target_first: float
    stop_first: float
    neither: float
    by: datetime


class ClosedAbove(TypedDict):
    """The chance that the candle which closes at a time closes above a price."""

    price: float
    probability: float
    by: datetime


class OfPrices(OfSeries):
    """First fields of every response about prices, by the newest forecast; `note`: why there is no chance."""

    issued_at: datetime
    model_version: str
    last_close: float
    note: str | None = None


class Touch(OfPrices):
    """The chances of the newest forecast that prices are reached.

    `touch`: of each price that was asked for, by each step. `stops`: the prices that are reached by the last step with
    a chance of 25, 10 and 5 %. `note`: why there are none.
    """

    touch: list[Reached] = []
    stops: list[Reached] = []


class First(OfPrices):
    """The chances of the newest forecast that a target is reached before a stop, by each step.

    `note`: why there are none.
    """

    first: list[Decided] = []


class Above(OfPrices):
    """The chances of the newest forecast that closes lie above prices: of each price, at each step.

    `note`: why there are none.
    """

    above: list[ClosedAbove] = []


class Values(TypedDict):
    """An array: its little-endian values in C order as base64."""

    dtype: Literal["float16", "float32"]
    shape: list[int]
    data: str


class Table(OfPrices):
    """The table of extremes of the model that made the newest forecast, from which its chances follow.

    `distance`, `first`: as in `cpbmodels.data.extremes.Extremes`; `first` is null in a model of before. `note`: why
    there is no table.
    """

    distance: Values | None = None
    first: Values | None = None


class Candle(BaseModel):
    """A closed candle; `close_time` is its end, an interval after `open_time`."""

    open_time: datetime
    close_time: datetime
    open: float
    high: float
    low: float
    close: float
    volume: float


class Candles(OfSeries):
    """Stored candles, the newest last."""

    candles: list[Candle]


class ChampionInfo(OfSeries):
    """The model that serves a series, with its finding on the test span.

    `reason`: why it became champion. `decision`: the newest decision on its series, null if it was made champion in
    MLflow. `selected_on`: test rows that its recipe was chosen on, so that its finding is no result; null for none.
    """

    model_version: str
    architecture: str | None
    preset: str | None
    verdict: str | None
    reason: str | None
    decision: Decision | None
    selected_on: str | None
    metrics: dict[str, float]


class Leaderboard(BaseModel):
    """A market's architectures against the random walk, and its champions; `note` says why it is empty or old."""

    market: Market
    rows: list[dict[str, Any]]
    columns: dict[str, str]
    champions: list[ChampionInfo]
    verdict: str | None = None
    note: str | None = None


class LedgerSummary(BaseModel):
    """Hit rates of the champions of a series, since the first scored day; null if nothing is scored."""

    scored: int
    forecasts: int
    crps: float | None
    coverage_50: float | None
    coverage_80: float | None
    coverage_90: float | None
    directional_accuracy: float | None


class RecordEntry(LedgerEntry):
    """A row of the live record; `schemas.ledger.LedgerEntry` describes its figures.

    `kind`: `series` (all champions of the series), `version` (one of the newest versions) or `pooled` (all champions of
    the timeframe). A ratio below 1 is better than the random walk; its interval is valid at any time, and is null, with
    the verdict "too few to tell", while there are too few complete days.
    """

    @computed_field(description="what the interval says, in words")  # type: ignore[prop-decorator]
    @property
    def verdict(self) -> str:
        """The verdict from the interval."""
        return super().verdict


class LedgerRow(BaseModel):
    """A scored forecast row; `crps` is of the log-return since `last_close`, `ref_crps` the random walk's.

    `live`: stored before its target candle closed. A replay (`--as-of` in the past) is not.
    """

    model_version: str
    issued_at: datetime
    step: int
    target_time: datetime
    last_close: float
    q05: float
    q10: float
    q25: float
    q50: float
    q75: float
    q90: float
    q95: float
    role: str
    realised_close: float
    scored_at: datetime
    live: bool
    crps: float
    ref_crps: float | None
    covered_50: bool
    covered_80: bool
    covered_90: bool
    direction_hit: bool | None


class Ledger(OfSeries):
    """Scores of the forecasts: hit rates of all rows and of live rows, the record, and the newest rows, newest last.

    `record` is as of `recorded_at`, the last scoring; null before the first scoring that stored a record. `watch`: the
    drift watch's result for the champion's live forecasts; null before its first check.
    """

    watch: Alarm | None
    summary: LedgerSummary
    live: LedgerSummary
    recorded_at: datetime | None
    record: list[RecordEntry]
    rows: list[LedgerRow]


class MarketInfo(OfMarket):
    """A market with stored data: its series with candles or forecasts, and those of them with a forecast."""

    series: int
    forecasts: int


class OverviewRow(OfSeries):
    """Overview of a series; unknown values are null.

    `made_at`: when the newest forecast was stored; `live`: before its first candle closed, otherwise it is a replay.
    `origin_close`: the close of the last candle that the newest forecast used, at `issued_at`. `q10`, `q90`: the
    central 80 % of the forecast's last step, for the close at `range_at`, in prices; `range_80_low`, `range_80_high`:
    the same in percent of `origin_close`. `stop_5_down`, `stop_5_up`: the prices below and above that are reached by
    `range_at` with a chance of 5 %. `width_ratio`: the width of that range in percent over the median of the forecasts
    of the 30 days before, of which `width_days` days have some; null under 7. `day_closes`: forecasts of closes, of any
    step, that came due in the 24 hours up to the newest candle, live ones if there are some (`day_live`), else replays;
    `day_inside`: those of them inside their 80 %. `last_close` is the newest stored close, at `closed_at`; `change_1d`
    its change over a day, in percent (null without a close of that time). `champion`: registered model and version;
    `verdict` and `crps_ratio` are the champion's on its test span; `selected_on`: the rows of the span that its recipe
    was chosen on, which make it no result. `record_…`: scores of this series' live
    forecasts, or of its replays if there are no live forecasts (`record_live`). `watch`: the newest state of the drift
    watch. `stale`: a message if candles or forecast are too old. `standing_note`: a message if the last candles before
    the newest forecast, `standing` of them, stand still. `sparkline`: the newest closes, at most 48.
    `command`: makes a new forecast; `cpb train-all …` before the first.
    """

    issued_at: datetime | None = None
    made_at: datetime | None = None
    live: bool | None = None
    model_version: str | None = None
    origin_close: float | None = None
    last_close: float | None = None
    closed_at: datetime | None = None
    change_1d: float | None = None
    range_80_low: float | None = None
    range_80_high: float | None = None
    range_at: datetime | None = None
    q10: float | None = None
    q90: float | None = None
    stop_5_down: float | None = None
    stop_5_up: float | None = None
    width_ratio: float | None = None
    width_days: int | None = None
    day_closes: int | None = None
    day_inside: int | None = None
    day_live: bool | None = None
    architecture: str | None = None
    champion: str | None = None
    verdict: str | None = None
    selected_on: str | None = None
    crps_ratio: float | None = None
    record_live: bool | None = None
    record_ratio: float | None = None
    record_low: float | None = None
    record_high: float | None = None
    record_verdict: str | None = None
    record_days: int | None = None
    watch: Literal["fine", "watch", "drifted"] | None = None
    watch_reason: str | None = None
    stale: str | None = None
    standing: int | None = None
    standing_note: str | None = None
    sparkline: list[float] = []
    command: str


class Overview(OfMarket):
    """All series of a market, those with a forecast first. `note`: what is missing and the command that creates it.

    `stale`: the command that renews all stale series, as a clause; null if there are none.

    `markets`: every market with stored data, the default market first.
    """

    rows: list[OverviewRow]
    note: str | None
    stale: str | None = None
    markets: list[MarketInfo]


class IssuedForecast(BaseModel):
    """A stored forecast. `live`: made before its first target candle closed; otherwise a replay.

    `role`: `champion`.
    """

    issued_at: datetime
    model_version: str
    role: str
    live: bool
    made_at: datetime | None


class Forecasts(OfSeries):
    """Issue times of a series' forecasts, newest last; `until` of the next older page is before the first."""

    forecasts: list[IssuedForecast]


class Models(OfSeries):
    """The newest judged model of each architecture and preset, best CRPS ratio first; `note`: why there are none."""

    models: list[JudgedModel]
    note: str | None


class Decisions(OfSeries):
    """Decisions on the champion of a series, newest first: the last 15, and those that made a champion.

    `note` says why there are none.
    """

    decisions: list[Decision]
    note: str | None


class Training(OfMarket):
    """A fleet that is being trained now.

    Unknown values are null, such as losses before the end of the first epoch.

    `epochs`: the maximum; models that stop improving end earlier. `eta_seconds`: at this training's pace so far,
    without the forecasts and the judging that follow. Losses are means over the models that are still being trained.
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


class FlowRun(FlowRunInfo, OfMarket):
    """A run of the flow, or a search of `cpb tune` (`kind` study), as MLflow has it.

    `outcome`: complete, partial or failed; null while it runs or was killed.

    `status`: RUNNING, FINISHED, FAILED or KILLED, also if the run's process has died. `coins` and `timeframes` as
    requested, so that coins may be `all`. `architectures` as planned, with the preset if the run has several fleets of
    one: `gru/seed-gru`.
    `as_of`: candles that close after it were ignored, as requested; else the day (UTC) of the newest candle.
    """


class Runs(BaseModel):
    """Trainings in progress on this machine, and the newest runs of the flow; `note` says why there are no runs.

    `active`: whether a run of this machine is at work, a backtest too, which is not among the runs.
    """

    trainings: list[Training]
    active: bool
    runs: list[FlowRun]
    note: str | None


class Changes(BaseModel):
    """A token for each part of the stored data; the part has changed if its token has.

    `board`: what was last read of MLflow's store (models, champions, decisions), which changes when answers do.
    `runs`: the same and the trainings in progress.
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


class Problem(BaseModel):
    """An error as a sentence: what is wrong and what to do."""

    detail: str
