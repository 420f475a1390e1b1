"""The live record after a week and after a year: what the page's summary and an hour's scoring cost.

    python -m benchmarks.ledger [--series 12] [--days 7,365] [--repeats 20] [--json]

Makes hourly forecasts of so many series, of a version a day, with the reference beside them, scores them, and then
measures in this process: reading what the page asks for (`/api/ledger/…?limit=0`, without HTTP), and the next hour
(a forecast for each series stored, what has come due scored, the record made again). `months` counts the month files
that the hour's daily sums read: two a series, forecasts and scores, however long the record is.
"""

import argparse
import json
import statistics
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._live_record import HOUR, hourly_forecasts, store_candles, walk
from benchmarks._paired import seconds, table
from schemas.identity import SeriesId
from tasks.forecasting import chain, daily
from tasks.forecasting.ledger import score_due
from tasks.forecasting.summary import SUMMARY
from webapp import reading

FIRST = datetime(2024, 1, 10, tzinfo=UTC)


def _version(moment: datetime) -> int:
    return (moment - FIRST).days + 1


def measure(home: Path, count: int, days: int, repeats: int) -> dict[str, Any]:
    """Fill a home with a record of `days` and return its figures."""
    everything = [SeriesId("spot", f"C{i:02d}USDT", "1h") for i in range(count)]
    rows = 24 * days
    closes = {one: walk(rows + 2, seed) for seed, one in enumerate(everything)}
    for one, close in closes.items():
        store_candles(home, one, FIRST, close)
        made = hourly_forecasts(one, FIRST, close, np.arange(rows - 1), version=_version)
        chain.append(home, "spot", "forecasts", {one: made})
    score_due(home, everything, FIRST + rows * HOUR)
    read = [seconds(lambda: reading.scored(home, everything[0], 0)) for _ in range(repeats)]

    new = {
        one: hourly_forecasts(one, FIRST, close, np.array([rows]), version=_version)
        for one, close in closes.items()
    }
    met: list[str] = []
    reader = daily.read_month

    def counted(*given: Any) -> Any:
        met.append(given[-1])
        return reader(*given)

    daily.read_month = counted  # type: ignore[assignment]
    stored = seconds(lambda: chain.append(home, "spot", "forecasts", new))
    scored = seconds(lambda: score_due(home, everything, FIRST + (rows + 1) * HOUR))
    daily.read_month = reader
    return {
        "scored rows": count * rows * 10,
        "page's summary ms": round(1000 * statistics.median(read), 2),
        "summary.json KB": round((home / "ledger" / SUMMARY).stat().st_size / 1000, 1),
        "hour: forecasts stored s": round(stored, 2),
        "hour: scoring s": round(scored, 2),
        "months": len(met),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--series", type=int, default=12)
    parser.add_argument("--days", default="7,365")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = {}
    for days in map(int, given.days.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            found[f"{days} days"] = measure(Path(folder), given.series, days, given.repeats)
    print(json.dumps(found) if given.json else table(found))


if __name__ == "__main__":
    main()
