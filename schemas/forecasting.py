"""Options of `cpb forecast`."""

import re
from typing import Self

from pydantic import Field, model_validator

from cpbmodels.data import INTERVAL_SECONDS
from schemas.coins import CHAMPIONS
from schemas.errors import UsageError
from schemas.scope import ScopeSpec

_GROUPED = re.compile(r"(?<![^,])\d{1,3},\d{3}(?:\.\d*)?(?![^,])")
"""Two prices, or one whose thousands are grouped: `98,500`."""


def parse_prices(*texts: str) -> list[float]:
    """Return the prices in texts such as `98000,105000`.

    Raises:
        UsageError: one is no price, or may be two, or there are more than 1,000.
    """
    for text in texts:
        # 98,500 is one price to some readers and two to others; a wrong guess gives a wrong chance
        if grouped := _GROUPED.search(text):
            first, second = grouped[0].split(",")
            raise UsageError(
                f"{grouped[0]!r} can be read as one price or as two: write {first}{second} for one, "
                f"{first}.0,{second} for two",
                code="touch",
            )
    text = ",".join(texts)
    try:
        prices = [float(part) for part in text.split(",")]
    except ValueError:
        prices = []
    if not (1 <= len(prices) <= 1000 and all(1e-12 <= price <= 1e12 for price in prices)):
        raise UsageError(
            f"{text[:40]!r} is no list of prices: give at most 1,000 from 1e-12 to 1e12, as in 98000,105000",
            code="touch",
        )
    return prices


class ForecastSpec(ScopeSpec):
    """Options of `cpb forecast`."""

    coins: str = Field(
        CHAMPIONS,
        description="BTC,ETH, all (the default universe), exchange (every listed USDT pair) or champions (every coin "
        "with a champion)",
    )
    timeframes: str = Field(
        CHAMPIONS, description="Binance intervals, as in 15m,1h, or champions (each with a champion)"
    )
    touch: str | None = Field(
        None,
        description="prices, as in 98000,105000: the chance that each is reached; of one coin and timeframe",
    )

    @model_validator(mode="after")
    def _touch_is_of_one_series(self) -> Self:
        if self.prices and (len(self.scope.symbols), len(self.intervals)) != (1, 1):
            raise UsageError(
                "touch needs one coin and one timeframe, as in `cpb forecast BTC 1h --touch 98000`",
                code="touch",
                field="touch",
            )
        return self

    @property
    def prices(self) -> list[float]:
        """The prices of `touch`."""
        return [] if self.touch is None else parse_prices(self.touch)

    @property
    def every_champion(self) -> bool:
        """Whether the coins come from the registry."""
        return self.coins.strip().lower() == CHAMPIONS

    @property
    def looks_up_symbols(self) -> bool:
        """Whether the symbols come from listing or registry; `scope.symbols` is empty until that is read."""
        return self.whole_exchange or self.every_champion

    @property
    def intervals(self) -> list[str]:
        """The timeframes without duplicates; for `champions`, every timeframe that a model can have."""
        asked = self.timeframes.strip().lower()
        # all that a model can have: which of them have a champion only the registry knows
        return list(INTERVAL_SECONDS) if asked == CHAMPIONS else super().intervals
