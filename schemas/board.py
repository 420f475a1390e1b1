"""Options of `cpb leaderboard`."""

from typing import Self

from pydantic import Field, model_validator

from schemas.base import Spec
from schemas.coins import parse_coins, parse_timeframes
from schemas.errors import UsageError
from schemas.identity import OWN, SPOT, Market, SeriesId, scope_options


class BoardSpec(Spec):
    """Options of `cpb leaderboard`: the rows of a single run, or the newest of each model, by market and series."""

    run: str | None = Field(None, description="id of a flow's run; default: the newest of each model")
    market: Market | None = Field(
        None, description="spot, um, cm, own or sim; default: all real markets, sim if there are none"
    )
    coins: str | None = Field(None, description="BTC,ETH or all; default: every coin that was trained")
    timeframes: str | None = Field(None, description="as in 15m,1h; default: all")

    @model_validator(mode="after")
    def _one_run_or_filters(self) -> Self:
        filters = {"market": self.market, "coins": self.coins, "timeframes": self.timeframes}
        given = [name for name, value in filters.items() if value is not None]
        if self.run is not None and given:
            raise UsageError(
                f"run shows everything that one run has trained: leave {', '.join(given)} out",
                code="run",
                field=given[0],
            )
        # parsed for their errors, which belong to the command line
        _ = self.symbols, self.intervals
        return self

    @property
    def options(self) -> str:
        """The command-line options that ask for the same market, coins and timeframes."""
        return scope_options(self.market or SPOT, self.coins, self.timeframes)

    def selects(self, series: SeriesId) -> bool:
        """Whether a series is asked for."""
        return (
            self.market in (None, series.market)
            and (self.symbols is None or series.symbol in self.symbols)
            and (self.intervals is None or series.timeframe in self.intervals)
        )

    @property
    def symbols(self) -> set[str] | None:
        """The coins' symbols; None for all."""
        return set(parse_coins(self.coins, quoted=self.market == OWN)) if self.coins is not None else None

    @property
    def intervals(self) -> list[str] | None:
        """The timeframes; None for all."""
        return parse_timeframes(self.timeframes) if self.timeframes is not None else None
