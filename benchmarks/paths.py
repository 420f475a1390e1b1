"""Whether joint paths are better than independent steps: `python -m benchmarks.paths --home HOME [--n 200] [--json]`.

For every hourly series of the home, a model is trained on the candles before its last 15 % and forecasts from each
tenth candle of them (so that no step is in two forecasts). Energy and variogram scores (`scoringrules`) of n paths of
log-returns against the closes that followed, as ratios: the learned dependence, and a random walk's, against
independent steps from the same draws. The interval is a bootstrap over weeks, all coins of a week together. `cpu_s`:
1,000 paths of 40 series.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import scoringrules

import cpbmodels
from cpbmodels.data.paths import Margins, draw_paths
from cpbmodels.fleet.config import STEPS
from schemas.identity import stored_series
from tasks.judging.baselines import realised
from tasks.market.klines import read_klines

WEEK = 7 * 86_400_000_000
KINDS = ("learned", "random walk", "independent")


def scores_of(member: cpbmodels.Member, series: cpbmodels.Series, n: int) -> np.ndarray:
    """Return rows of week, energy scores by kind, variogram scores by kind; one for each origin."""
    origins = series.origins("test", member.context, member.horizon)[:: member.horizon]
    found = cpbmodels.predict([member], [series], [origins])[0]
    truth, unit = realised(series, origins, member.horizon), series.volatility[origins]
    steps = dict(zip(KINDS, (member.config[STEPS], None, [0.0] * len(member.config[STEPS])), strict=True))
    assert series.times is not None
    rows = []
    for k, row in enumerate(origins):
        close, real = np.exp(found.quantiles[k]), truth[k] / unit[k]
        drawn = [
            np.log(draw_paths([Margins("", close, steps[kind])], n, k, None, 3600).close[0]) / unit[k]
            for kind in KINDS
        ]
        rows.append(
            [series.times[row] // WEEK]
            + [float(scoringrules.es_ensemble(real, one)) for one in drawn]
            + [float(scoringrules.vs_ensemble(real, one, p=0.5)) for one in drawn]
        )
    return np.array(rows)


def ratios(rows: np.ndarray) -> dict[str, list[float]]:
    """Return ratio and 95 % interval of each score and kind against independent steps."""
    weeks, place = np.unique(rows[:, 0], return_inverse=True)
    sums = np.array([np.bincount(place, column) for column in rows[:, 1:].T])  # [6, weeks]
    draws = np.random.default_rng(1).multinomial(len(weeks), np.full(len(weeks), 1 / len(weeks)), 2000)
    out = {}
    for first, score in ((0, "energy"), (3, "variogram")):
        for kind in (0, 1):
            own, other = sums[first + kind], sums[first + 2]
            low, high = np.quantile((draws @ own) / (draws @ other), (0.025, 0.975))
            ratio = own.sum() / other.sum()
            out[f"{score}, {KINDS[kind]}"] = [round(float(one), 4) for one in (ratio, low, high)]
    return out


def cpu_seconds(close: np.ndarray, steps: list[float]) -> float:
    """Return the CPU time of 1,000 joint paths of 40 series with a correlation between them."""
    names = [f"C{i}" for i in range(40)]
    coins = {"symbols": names, "correlation": [0.5] * (40 * 39 // 2)}
    began = time.process_time()
    draw_paths([Margins(name, close, steps) for name in names], 1000, 1, None, 3600, coins)
    return round(time.process_time() - began, 3)


def main() -> None:
    """Train, draw, score, print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--n", type=int, default=200)
    parser.add_argument("--architecture", default="robust-har")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    rows = []
    for one in [s for s in stored_series(asked.home, "klines") if s.timeframe == "1h" and s.market == "spot"]:
        series = cpbmodels.Series.from_frame(read_klines(asked.home, one), one.symbol, "1h", test=0.15)
        if cpbmodels.why_not(series, asked.architecture, "smoke"):
            continue
        member = cpbmodels.train_fleet([series], asked.architecture, preset="smoke", seeds=[1], device="cpu")[
            0
        ]
        rows.append(scores_of(member, series, asked.n))
    forecast = member.forecast(series, go_back=True)
    found = {"coins": len(rows), "forecasts": sum(map(len, rows)), **ratios(np.concatenate(rows))}
    found["cpu_s"] = cpu_seconds(forecast.close.array, member.config[STEPS])
    print(json.dumps(found) if asked.json else "\n".join(f"{name}: {value}" for name, value in found.items()))


if __name__ == "__main__":
    main()
