"""What champions' forecasts say in a line: the 80 % band of the last step's close, and rarely touched prices."""

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from schemas.errors import MemberError
from schemas.handover import Issued
from tasks.forecasting.months import latest
from tasks.forecasting.price_chances import PriceChances, chances_of

_CHANCE = 0.05


def outlook(home: Path, issued: Sequence[Issued], until: datetime | None = None) -> list[dict[str, Any]]:
    """Return a row for each forecast, of its last step.

    Keys: `market symbol timeframe verdict`; `issued_at` and `target_time` (UTC) with `last_close`; `q10` and `q90`, of
    the close at `target_time`; `stop_5_down` and `stop_5_up`, the prices touched until then with a chance of 5 %, None
    if the model has no table of extremes.

    Args:
        until: no forecast issued later is read.

    Raises:
        DamagedError: the month of a forecast is damaged.
    """
    return [_row(home, about, until) for about in issued]


def _row(home: Path, about: Issued, until: datetime | None) -> dict[str, Any]:
    series = about.series
    rows = latest(home, series, until, about.model_version)
    last = rows.row(-1, named=True)
    stops: dict[str, float | None] = {"stop_5_down": None, "stop_5_up": None}
    with suppress(MemberError):  # a model without a table, or replaced meanwhile: its band stands
        stops |= rarely_touched(chances_of(home, series, rows))
    read = ("issued_at", "target_time", "last_close", "q10", "q90")
    return {**vars(series), "verdict": about.verdict, **{name: last[name] for name in read}, **stops}


def rarely_touched(chances: PriceChances) -> dict[str, float]:
    """Return the prices touched by the last step with a chance of 5 %, as `stop_5_down` and `stop_5_up`.

    Raises:
        MemberError: the model has no table of extremes.
    """
    return {f"stop_5_{stop['side']}": stop["price"] for stop in chances.stops([_CHANCE])}
