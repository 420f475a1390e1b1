"""Is risk sized by the forecast nearer to what comes than risk sized by the ATR? On candles that no model has seen.

python -m research.sizing --source FOLDER --as-of 2025-06-06

Trains champions as of `--train-until`, then compares, at every hour after it, two measures of the risk of the next h
candles with what came:
- forecast: `cpb_sigma_h` of `cpbmodels.freqtrade`;
- ATR: Wilder's average true range over 14 candles / close x sqrt(h).
What came is measured twice: `volatility`, the root of the sum of the h squared log-returns, which is what a position
feels and a noisy figure of few numbers; `range`, the mean ln(high / low) x sqrt(h), which knows what happens within the
candles. Both sides are scaled by one constant for each coin, h and figure: the best for them in the year before
`--train-until`. Errors: `log`, mean |ln(ex-ante / realised)|; `qlike`, mean of x - ln x - 1 with
x = (realised / ex-ante)^2.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from cpbmodels import Series, load, predict
from cpbmodels.freqtrade import forecast_sigma
from schemas.identity import SeriesId
from tasks.market.klines import read_klines

HORIZONS = (1, 5, 10)
ATR_CANDLES = 14
FIT_CANDLES = 365 * 24
FIGURES = ("volatility", "range")
ERRORS = ("log", "qlike")
HOLDS = ("rms_in_sigmas", "within_sigma", "below_q05", "touched_q05")
DRAWS = 2000


def train(home: Path, source: str, until: str, as_of: str, coins: str) -> None:
    """Champions as of `until`, and candles up to `as_of`, in `home`."""
    env = os.environ | {"CPB_HOME": str(home), "MLFLOW_TRACKING_URI": f"sqlite:///{home}/mlflow.db"}
    scope = ["--coins", coins, "--timeframes", "1h", "--source", source]
    recipe = ["--architectures", "robust-har,har", "--preset", "default"]
    for command in (
        ["train-all", *scope, *recipe, "--as-of", until],
        ["ingest", *scope, "--as-of", as_of],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "flows.cli", *command], env=env, stdout=subprocess.DEVNULL, check=False
        )
        if done.returncode not in (0, 3):  # 3: a coin that has stopped trading is left out
            raise SystemExit(f"cpb {command[0]} ended with {done.returncode}")


def atr(prices: np.ndarray, segments: np.ndarray) -> np.ndarray:
    """Wilder's average true range as a share of the close, [rows]; NaN in the first candles of a segment."""
    before = np.r_[np.nan, prices[:-1, 3]]
    before[np.r_[True, segments[1:] != segments[:-1]]] = np.nan
    spread = np.fmax(prices[:, 1], before) - np.fmin(prices[:, 2], before)
    out, run, seen = np.full(len(prices), np.nan), 0.0, 0
    for row in range(len(prices)):
        fresh = np.isnan(before[row])
        seen = 1 if fresh else seen + 1
        share = 1 / min(seen, ATR_CANDLES)  # Wilder: a plain mean first, then 1/14 of the new range
        run = spread[row] if fresh else run + share * (spread[row] - run)
        if seen >= ATR_CANDLES:
            out[row] = run / prices[row, 3]
    return out


def realised(series: Series, origins: np.ndarray, h: int) -> dict[str, np.ndarray]:
    """What the h candles after each origin brought, [N] for each of FIGURES."""
    logs = np.log(series.prices)
    rows = origins[:, None] + np.arange(1, h + 1)
    returns = logs[rows, 3] - logs[rows - 1, 3]
    ranges = logs[rows, 1] - logs[rows, 2]
    return {"volatility": np.sqrt((returns**2).sum(axis=1)), "range": ranges.mean(axis=1) * np.sqrt(h)}


def errors(ex_ante: np.ndarray, came: np.ndarray, fit: np.ndarray) -> dict[str, np.ndarray]:
    """ERRORS of the origins that are not in `fit` (bool [N]), after scaling on those that are."""
    ratio = came / ex_ante
    tested = ratio[~fit]
    squared = tested**2 / np.mean(ratio[fit] ** 2)
    return {
        "log": np.abs(np.log(tested / np.median(ratio[fit]))),
        "qlike": squared - np.log(squared) - 1,
    }


def measure_coin(
    folder: Path, home: Path, until: datetime
) -> tuple[dict[tuple[int, str], dict[str, Any]], list[list[float]]]:
    """For each h and figure the month of each tested origin and the errors of both sides; and `holds`."""
    model = load(folder)
    if model.known_until is None or model.known_until > until:
        raise SystemExit(f"{folder} knows candles until {model.known_until}: train it as of {until:%Y-%m-%d}")
    name = SeriesId("spot", model.config["symbol"], "1h")
    series = Series.from_frame(read_klines(home, name), name.symbol, "1h")
    assert series.times is not None
    closes = series.times + 3_600_000_000
    first = int(np.searchsorted(closes, int(until.timestamp() * 1e6)))
    ranges = atr(series.prices, series.segments)
    origins = np.flatnonzero(series.usable(model.context, max(HORIZONS)) & np.isfinite(ranges))
    origins = origins[origins >= first - FIT_CANDLES]
    quantiles = predict([model], [series], [origins])[0].quantiles
    sigma = forecast_sigma(quantiles)
    months = closes[origins].astype("datetime64[us]").astype("datetime64[M]")
    out: dict[tuple[int, str], dict[str, Any]] = {}
    for h in HORIZONS:
        for figure, came in realised(series, origins, h).items():
            before = origins + h < first
            # No target lies on both sides, and a candle without any move has no logarithm.
            keep = (before | (origins >= first)) & (came > 0)
            out[h, figure] = {
                "months": months[keep & ~before],
                "dropped": int((came <= 0).sum()),
                "forecast": errors(sigma[keep, h - 1], came[keep], before[keep]),
                "atr": errors(ranges[origins][keep] * np.sqrt(h), came[keep], before[keep]),
            }
    tested = origins >= first
    return out, holds(series, origins[tested], quantiles[tested])


def holds(series: Series, origins: np.ndarray, quantiles: np.ndarray) -> list[list[float]]:
    """HOLDS for each of HORIZONS.

    The root mean square of the move in sigmas; shares of moves within one sigma, of closes below the 5 % quantile, and
    of origins after which a low undercut it.
    """
    logs, sigma = np.log(series.prices), forecast_sigma(quantiles)
    out = []
    for h in HORIZONS:
        moves = logs[origins + h, 3] - logs[origins, 3]
        lows = logs[origins[:, None] + np.arange(1, h + 1), 2].min(axis=1) - logs[origins, 3]
        scores, stop = moves / sigma[:, h - 1], quantiles[:, h - 1, 0]
        out.append(
            [
                float(np.sqrt((scores**2).mean())),
                float((np.abs(scores) < 1).mean()),
                float((moves < stop).mean()),
                float((lows < stop).mean()),
            ]
        )
    return out


def summary(coins: list[dict[tuple[int, str], dict[str, Any]]]) -> list[dict[str, Any]]:
    """For each figure, h and error: its mean over coins, the ratio, and how that spreads over coins and months."""
    rows = []
    for figure, h, error in product(FIGURES, HORIZONS, ERRORS):
        table = [one[h, figure] for one in coins]
        forecast, other = (
            np.array([one[side][error].mean() for one in table]) for side in ("forecast", "atr")
        )
        monthly = [_by_month(table, side, error) for side in ("forecast", "atr")]
        low, high = _interval(*monthly)
        rows.append(
            {
                "realised": figure,
                "h": h,
                "error": error,
                "forecast": float(forecast.mean()),
                "atr": float(other.mean()),
                "ratio": float(forecast.mean() / other.mean()),
                "low": low,
                "high": high,
                "median_coin": float(np.median(forecast / other)),
                "worst_coin": float((forecast / other).max()),
                "coins_better": int((forecast < other).sum()),
                "months": [float(ratio) for ratio in monthly[0] / monthly[1]],
                "origins": sum(len(one["months"]) for one in table),
                "dropped": sum(one["dropped"] for one in table),
            }
        )
    return rows


def _by_month(table: list[dict[str, Any]], side: str, error: str) -> np.ndarray:
    """Mean error of each month over all coins' origins; a month of a few days is left out."""
    months = np.concatenate([one["months"] for one in table])
    values = np.concatenate([one[side][error] for one in table])
    names, counts = np.unique(months, return_counts=True)
    return np.array([values[months == name].mean() for name in names[counts > counts.max() / 2]])


def _interval(forecast: np.ndarray, other: np.ndarray) -> tuple[float, float]:
    """95 % of the ratio of means over months drawn with replacement."""
    draw = np.random.default_rng(1).integers(len(forecast), size=(DRAWS, len(forecast)))
    low, high = np.quantile(forecast[draw].mean(1) / other[draw].mean(1), [0.025, 0.975])
    return float(low), float(high)


def main() -> None:
    """Train unless `--home` has champions; print a table, or one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", required=True, help="mirror folder or URL")
    parser.add_argument("--train-until", default="2025-01-01")
    parser.add_argument("--as-of", default="2025-06-06")
    parser.add_argument("--coins", default="all")
    parser.add_argument(
        "--home", type=Path, help="keep candles and models here, and use those that are there"
    )
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    until = datetime.fromisoformat(asked.train_until).replace(tzinfo=UTC)
    with tempfile.TemporaryDirectory() as folder:
        home = (asked.home or Path(folder)).resolve()
        if not (home / "hub").is_dir():
            source = str(Path(asked.source).resolve()) if Path(asked.source).exists() else asked.source
            train(home, source, asked.train_until, asked.as_of, asked.coins)
        folders = sorted((home / "hub").glob("*/1h"))
        measured = [measure_coin(one, home, until) for one in folders]
    rows = summary([one for one, _ in measured])
    held = np.mean([one for _, one in measured], axis=0)
    if asked.json:
        holding = {
            h: dict(zip(HOLDS, one, strict=True)) for h, one in zip(HORIZONS, held.tolist(), strict=True)
        }
        print(json.dumps({"coins": len(folders), "rows": rows, "holds": holding}))
        return
    print(
        f"{len(folders)} coins at 1h, {asked.train_until} to {asked.as_of}, {rows[0]['origins']:,} origins\n"
    )
    print(
        "| realised | h | error | forecast | ATR | ratio | 95 % over months | median coin | worst coin | months |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for r in rows:
        print(
            f"| {r['realised']} | {r['h']} | {r['error']} | {r['forecast']:.3f} | {r['atr']:.3f} | {r['ratio']:.3f} "
            f"| [{r['low']:.3f}, {r['high']:.3f}] | {r['median_coin']:.3f} | {r['worst_coin']:.3f} "
            f"| {min(r['months']):.2f} to {max(r['months']):.2f} |"
        )
    print(f"\n| h | {' | '.join(HOLDS)} |\n|---|---|---|---|---|")
    for h, one in zip(HORIZONS, held, strict=True):
        print(f"| {h} | {one[0]:.2f} | {one[1]:.1%} | {one[2]:.1%} | {one[3]:.1%} |")


if __name__ == "__main__":
    main()
