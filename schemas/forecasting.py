"""Options of `cpb forecast`."""

import re
from typing import Any, Self

from pydantic import Field, model_validator

from cpbmodels.data import INTERVAL_SECONDS
from cpbmodels.errors import grouped, two_readings
from schemas.coins import CHAMPIONS
from schemas.errors import UsageError
from schemas.space import SpaceSpec

MIN_PRICE, MAX_PRICE = 1e-12, 1e12
"""Of a price that is asked about, in the quote currency."""

_THOUSANDS = re.compile(r"[1-9]\d*\.\d{3}")
"""A price such as `98.500`, where some readers take the dot as a separator of thousands."""

_QUESTIONS = ("touch", "target", "stop", "above", "stop_chance")
"""Options about prices, of one series."""


def parse_prices(*texts: str, option: str = "price") -> list[float]:
    """Return the prices in texts such as `98000,105000`; errors name the option.

    Raises:
        UsageError: one is no price, or may be two, or there are more than 1,000.
    """
    for text in texts:
        if why := two_readings(text):  # a wrong guess gives a wrong chance
            raise UsageError(f"{option} {why}", code="touch", field=option)
    text = ",".join(texts)
    try:
        prices = [float(part) for part in text.split(",")]
    except ValueError:
        prices = []
    if not (1 <= len(prices) <= 1000 and all(MIN_PRICE <= price <= MAX_PRICE for price in prices)):
        raise UsageError(
            f"{option} {text[:40]!r} is no list of prices: give at most 1,000 from 1e-12 to 1e12, as in 98000,105000",
            code="touch",
            field=option,
        )
    return prices


def parse_chances(text: str, option: str = "stop-chance") -> list[float]:
    """Return the chances in a text such as `5%,.1`, between 0 and 1; errors name the option.

    Raises:
        UsageError: one is no chance, or may be two.
    """
    chances = []
    for part in map(str.strip, text.split(",")):
        try:
            number = float(part.removesuffix("%"))
        except ValueError:
            number = 0
        # 5 is 5 % to one reader, and 500 % as the number that .05 is 5 %
        if 1 <= number < 100 and not part.endswith("%"):
            raise UsageError(
                f"{option} {part!r} can be read as {number:g} % or as {100 * number:g} %: write {number:g}% or "
                f"{number / 100:g}",
                code="chance",
                field=option.replace("-", "_"),
            )
        chances.append(number / 100 if part.endswith("%") else number)
    if not all(0 < chance < 1 for chance in chances):
        raise UsageError(
            f"{option} {text[:40]!r} is no chance between 0 and 1: write 5% or .05, several as in 5%,10%",
            code="chance",
            field=option.replace("-", "_"),
        )
    return chances


def parse_price(text: str, option: str) -> float:
    """Return the price in a text such as `98000`; errors name the option.

    Raises:
        UsageError: it is no price, or several.
    """
    try:
        (price,) = parse_prices(text, option=option)
    except (UsageError, ValueError):
        raise UsageError(
            f"{option} {text[:40]!r} is not one price: write a number without commas from 1e-12 to 1e12, as in 98000",
            code="touch",
            field=option,
        ) from None
    return price


class ForecastSpec(SpaceSpec):
    """Options of `cpb forecast`."""

    coins: str = Field(
        CHAMPIONS,
        description="BTC,ETH, all (the default universe), exchange (every listed USDT pair) or champions (every coin "
        "with a champion)",
    )
    timeframes: str = Field(
        CHAMPIONS, description="Binance intervals, as in 15m,1h, or champions (each with a champion)"
    )
    touch: str | None = Field(None, description="prices, as in 98000,105000: the chance that each is reached")
    target: str | None = Field(
        None,
        description="a price on the other side of the last close than --stop: the chance that it is reached first",
    )
    stop: str | None = Field(
        None, description="a price, of --target; a candle that reaches both counts for the stop"
    )
    above: str | None = Field(
        None, description="prices, as in 98000,105000: the chance that the close lies above each"
    )
    stop_chance: str | None = Field(
        None, description="chances, as in 5%,10% or .05: the prices up and down that are reached with each"
    )

    @model_validator(mode="after")
    def _questions_can_be_asked(self) -> Self:
        if (self.target is None) != (self.stop is None):
            given, missing = ("stop", "target") if self.target is None else ("target", "stop")
            price = parse_price(getattr(self, given), given)
            raise UsageError(
                f"{given} needs a {missing} on the other side of the last close: add --{missing} PRICE, or ask for "
                f"the chance of one price alone, with --touch {price:.12g}",
                code="pair",
                field=missing,
            )
        # Whatever the scope: this also refuses what cannot be read.
        if self.questions and (len(self.scope.symbols), len(self.intervals)) != (1, 1):
            asked = {name: getattr(self, name) for name in _QUESTIONS if getattr(self, name) is not None}
            field, *_ = asked
            options = " ".join(f"--{name.replace('_', '-')} {text}" for name, text in asked.items())
            raise UsageError(
                f"{field.replace('_', '-')} needs one coin and one timeframe, as in `cpb forecast BTC 1h {options}`",
                code="touch",
                field=field,
            )
        return self

    @property
    def questions(self) -> dict[str, tuple[Any, ...]]:
        """What is asked about prices: methods of `PriceChances` with their arguments."""
        asked: dict[str, tuple[Any, ...]] = {}
        if self.touch is not None:
            asked["touch"] = (parse_prices(self.touch, option="touch"),)
        if self.target is not None and self.stop is not None:
            asked["first"] = (parse_price(self.target, "target"), parse_price(self.stop, "stop"))
        if self.above is not None:
            asked["above"] = (parse_prices(self.above, option="above"),)
        if self.stop_chance is not None:
            asked["stops"] = (parse_chances(self.stop_chance),)
        return asked

    def check_thousands(self, last_close: float) -> None:
        """Refuse a price such as `98.500` where a thousand times as much is within a factor of two of the last close.

        Raises:
            UsageError: names both readings.
        """
        for option in ("touch", "target", "stop", "above"):
            for text in map(str.strip, (getattr(self, option) or "").split(",")):
                if _THOUSANDS.fullmatch(text) and 0.5 <= 1000 * float(text) / last_close <= 2:
                    one, other = f"{float(text):.12g}", text.replace(".", "")
                    raise UsageError(
                        f"{option} {text!r} can be read as {one} or as {other}, and the last close is "
                        f"{grouped(last_close)}: write {text}0 for {one}, {other} for {other}",
                        code="touch",
                        field=option,
                    )

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
