"""Which part of which market a command is about: the options every command shares."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from schemas.errors import UsageError
from schemas.universe import MARKETS, TIMEFRAMES, parse_coins, parse_timeframes


def home() -> Path:
    """Return the market store's folder: `CPB_HOME`, or `./data`."""
    return Path(os.environ.get("CPB_HOME") or "data")


SIMULATED = "SIMULATED"
"""Name of the file that marks a store as the simulator's."""


def home_for(source: str | None) -> Path:
    """Return the store for a source: the simulator keeps out of a store of real candles, in `sim` below it."""
    base = home()
    occupied = source == "sim" and (base / "klines").exists() and not (base / SIMULATED).exists()
    return base / "sim" if occupied else base


def parse_instant(text: str, option: str) -> datetime:
    """Return a UTC time from `2024-01`, `2024-01-31`, `2024-01-31T12:30` or with seconds.

    Raises:
        UsageError: naming `option`, when the text is none of these.
    """
    for form in ("%Y-%m", "%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S"):
        try:
            return datetime.strptime(text.strip().removesuffix("Z"), form).replace(tzinfo=UTC)
        except ValueError:
            continue
    raise UsageError(f"{option} {text!r} is not a date: use 2024-01, 2024-01-31 or 2024-01-31T12:30 (UTC)")


class Scope(BaseModel):
    """Symbols, timeframes and time range of one command.

    `source` is a URL, a folder, `sim`, or None for Binance Vision. `since` (inclusive) is compared with
    `open_time`; `as_of` with the candle's end: no candle that closes after it is seen.
    """

    model_config = ConfigDict(frozen=True)

    symbols: tuple[str, ...]
    timeframes: tuple[str, ...]
    source: str | None = None
    market: str = "spot"
    since: datetime | None = None
    as_of: datetime | None = None
    home: Path

    @classmethod
    def of(
        cls,
        coins: str = "all",
        timeframes: str = ",".join(TIMEFRAMES),
        source: str | None = None,
        market: str = "spot",
        since: str | None = None,
        as_of: str | None = None,
        months: bool = False,
    ) -> "Scope":
        """Build a scope from command-line texts; raises `UsageError` naming the option at fault.

        `months` allows candles of a calendar month, which can be stored but not learned from.
        """
        if market not in MARKETS:
            raise UsageError(f"--market {market!r} is unknown: choose from {', '.join(MARKETS)}")
        start = parse_instant(since, "--since") if since else None
        end = parse_instant(as_of, "--as-of") if as_of else None
        if start and end and end - start < timedelta(days=1):
            raise UsageError(f"--as-of {as_of} must lie at least a day after --since {since}")
        return cls(
            symbols=tuple(parse_coins(coins)),
            timeframes=tuple(parse_timeframes(timeframes, months)),
            source=source or None,
            market=market,
            since=start,
            as_of=end,
            home=home_for(source),
        )
