"""What the API answers: typed, so that `/openapi.json` describes it. Times UTC, prices in the quote currency."""

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field, RootModel, computed_field, create_model

from cpbmodels.rows import MEDIAN_COLUMNS, QUANTILE_COLUMNS
from schemas.handover import Alarm, Decision
from schemas.identity import SIM, Market
from schemas.ledger import LedgerEntry


class OfSeries(BaseModel):
    """What every answer about one series begins with."""

    market: Market
    symbol: str
    timeframe: str

    @computed_field(description="prices of the built-in simulator, not of a market")  # type: ignore[prop-decorator]
    @property
    def simulated(self) -> bool:
        """Whether the prices are the simulator's."""
        return self.market == SIM


class Health(BaseModel):
    """The service answers; how much it has to show, and what of it is too old.

    `stale`: real candles or forecasts more than two intervals behind what Binance has published, one sentence
    each. `empty`: nothing is stored yet. Simulated series count only where there are no others.
    """

    status: Literal["ok", "stale", "empty"]
    series: int = Field(description="series with a forecast")
    newest_forecast: datetime | None
    stale: list[str] = []


class SeriesInfo(OfSeries):
    """One series in the store; `issued_at` is null where it has candles only."""

    issued_at: datetime | None
    model_version: str | None


class SeriesList(RootModel[list[SeriesInfo]]):
    """Every series with forecasts or candles."""


class _Step(BaseModel):
    """One step ahead: quantiles of the close, and the median candle (its close is `q50`)."""

    step: int
    target_time: datetime


_prices: dict[str, Any] = dict.fromkeys((*QUANTILE_COLUMNS, *MEDIAN_COLUMNS), (float, ...))
Step = create_model("Step", __base__=_Step, **_prices)


class Forecast(OfSeries):
    """The newest stored forecast of a series; `issued_at` is the close of the last candle used."""

    issued_at: datetime
    model_version: str
    last_close: float
    steps: list[Step]  # type: ignore[valid-type]


class Candle(BaseModel):
    """One closed candle; `close_time` is its end, one interval after `open_time`."""

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

    `reason`: why it became champion. `decision`: the newest one on its series, null where an older release made it
    champion. `selected_on`: test rows that its recipe was chosen on, so that its finding is no result; null for none.
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
    """A market's architectures against the random walk, and its champions; `note` says why it is empty."""

    market: Market
    rows: list[dict[str, Any]]
    columns: dict[str, str]
    champions: list[ChampionInfo]
    verdict: str | None
    note: str | None


class LedgerSummary(BaseModel):
    """Hit rates of the champions of a series, since the first scored day; null where nothing is scored."""

    scored: int
    forecasts: int
    crps: float | None
    coverage_50: float | None
    coverage_80: float | None
    coverage_90: float | None
    directional_accuracy: float | None


class RecordEntry(LedgerEntry):
    """A row of the live record; what the figures are is said at `schemas.ledger.LedgerEntry`.

    `kind`: `series` (all champions of the series), `version` (one of the newest versions) or `pooled` (all champions of
    the timeframe). A ratio below 1 is better than the random walk; its interval holds at any time that one looks, and
    is null, with the verdict "too few to tell", while there are too few complete days.
    """

    @computed_field(description="what the interval says, in words")  # type: ignore[prop-decorator]
    @property
    def verdict(self) -> str:
        """What the interval says."""
        return super().verdict


class LedgerRow(BaseModel):
    """One scored forecast row; `crps` is of the log-return since `last_close`, `ref_crps` the random walk's.

    `live`: written before the candle it is about had closed. A replay (`--as-of` in the past) is not.
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
    """What came true: hit rates of all rows, of the live ones alone, the record, and the newest rows, newest last.

    `record` is as of `recorded_at`, the last scoring; null where there was none since the record is kept. `watch`: what
    the drift watch found of the champion's live forecasts; null before its first look.
    """

    watch: Alarm | None
    summary: LedgerSummary
    live: LedgerSummary
    recorded_at: datetime | None
    record: list[RecordEntry]
    rows: list[LedgerRow]


class Problem(BaseModel):
    """One sentence: what is wrong and what to do."""

    detail: str
