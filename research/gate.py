"""What the gate by a backtest lets through: nulls and power, a thousand times, on the dependence of real pairs.

python -m research.gate --rows FOLDER [--json]      # FOLDER: `--out` of a long backtest with refits, as in
    cpb backtest --source FOLDER --as-of 2025-06-06 --timeframes 1h --folds 9 --out FOLDER \\
        --architectures robust-har-universal,har-universal

The pair: the mean of both recipes' quantiles against `--of` (har-universal) alone, daily sums over the coins. Its mean
difference is removed (`null`) or replaced by a true gain. A simulated backtest is made of blocks of four weeks of real
days, drawn with replacement: overlap, clustering, what the coins share and the calendar of a month stay. Everything is
done with the noise of this pair, with the same scaled so that the 95 % interval of the ratio, by weeks, is as wide as
was measured for averages (.0011 at 1h over 1,080 days, .0007 at 15m over 510), and with Gaussian noise of that width.

- null: share of backtests in which any of m equal recipes passes: m named together (`together`, also the best of m
  search trials), or one after another on the same span (`one by one`).
- power: share in which a recipe better by a true gain passes among m - 1 equal ones, and the share that each condition
  alone lets through.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from cpbmodels.data.rows import QUANTILE_COLUMNS
from tasks.judging import paired
from tasks.judging.inference import NORMAL
from tasks.judging.paired import ALPHA, DailyLosses, Paired, corrected
from tasks.judging.scores import Array, crps

DAY_US = 86_400_000_000
BLOCK = 28  # days
COUNTS = (1, 5, 20, 40)
GAINS = (0.0005, 0.001, 0.002)
WIDTHS = {"1h": 0.0011, "15m": 0.0007}
"""Width of the measured 95 % interval of the ratio of an average and its first member (docs/judging-experiments.md)."""
MEASURED_DAYS = {"1h": 1080, "15m": 510}


def read_pair(folder: Path, first: str, second: str, timeframe: str) -> DailyLosses:
    """Daily sums of the CRPS of the mean of two models' quantiles, and of the first model's."""
    found: dict[str, dict[int, Array]] = {}
    for path in sorted(
        (folder / "forecasts" / f"model={first}" / f"interval={timeframe}").glob("symbol=*/*.parquet")
    ):
        twin = (
            folder
            / "forecasts"
            / f"model={second}"
            / path.relative_to(folder / "forecasts" / f"model={first}")
        )
        if not twin.exists():
            continue
        columns = ["issued_at", "step", "last_close", "realised_close", *QUANTILE_COLUMNS]
        one, other = (
            pl.read_parquet(file, columns=columns).sort("issued_at", "step") for file in (path, twin)
        )
        both = one.join(
            other.select("issued_at", "step", *QUANTILE_COLUMNS), on=["issued_at", "step"], suffix="_2"
        )
        last = np.log(both["last_close"].to_numpy())[:, None]
        truth = np.log(both["realised_close"].to_numpy()) - last[:, 0]
        mine = np.log(both.select(QUANTILE_COLUMNS).to_numpy()) - last
        mean = (mine + np.log(both.select(f"{c}_2" for c in QUANTILE_COLUMNS).to_numpy()) - last) / 2
        days = both["issued_at"].dt.epoch("us").to_numpy() // DAY_US
        names, place = np.unique(days, return_inverse=True)
        losses = np.column_stack(
            [np.bincount(place, crps(q[:, None], truth[:, None])[:, 0]) for q in (mean, mine)]
        )
        found.setdefault(path.parent.name, {}).update(zip(names.tolist(), losses, strict=True))
    every = np.array(sorted({day for coin in found.values() for day in coin}))
    sums = np.array([[coin.get(day, (0.0, 0.0)) for coin in found.values()] for day in every.tolist()])
    return DailyLosses(every, sums[..., 0], sums[..., 1])


def pooled(losses: DailyLosses) -> tuple[Array, Array]:
    """Return, per day, the difference and the second recipe's loss, mean over coins, as shares of the mean loss [D]."""
    scale = losses.other.sum(axis=0) / len(losses.days)
    return ((losses.own - losses.other) / scale).mean(axis=1), (losses.other / scale).mean(axis=1)


def simulated(difference: Array, level: Array, days: int, gain: float, random: np.random.Generator) -> Paired:
    """Figures of a backtest of so many days, from blocks of real days, with a true gain."""
    starts = random.integers(0, len(difference), -(-days // BLOCK))
    # Circular, so that every day is drawn alike and a null has the mean 0.
    rows = (starts[:, None] + np.arange(BLOCK)).ravel()[:days] % len(difference)
    other = level[rows][:, None]
    own = other + (difference[rows] - gain * level[rows])[:, None]
    return paired.paired(DailyLosses(np.arange(days) + 19_000, own, other))


def passes(found: Sequence[Paired], at_once: bool) -> list[bool]:
    """Whether each recipe passes, named together or one after another."""
    if at_once:
        p_values = corrected([one.p for one in found], [1] * len(found), 0)
    else:
        p_values = [corrected([one.p], [1], before)[0] for before, one in enumerate(found)]
    return [not one.failed(p) for one, p in zip(found, p_values, strict=True)]


def conditions(one: Paired, p: float) -> dict[str, bool]:
    return {
        "significant": p < ALPHA and one.high < 1,
        "gain": one.ratio <= 1 - paired.MIN_GAIN,
        "months": one.better >= paired.MIN_BETTER * one.months,
        "recent": not one.recent_p < ALPHA,
    }


def measure(difference: Array, level: Array, days: int, runs: int, seed: int) -> dict[str, Any]:
    """Nulls and power of backtests of so many days."""
    random = np.random.default_rng(seed)
    null: dict[str, list[float]] = {
        f"{count} {how}": [] for count in COUNTS for how in ("together", "one by one")
    }
    significant = []
    kept = []
    for _ in range(runs):
        found = [simulated(difference, level, days, 0.0, random) for _ in range(max(COUNTS))]
        kept.append(found)
        significant += [one.p < ALPHA for one in found]
        for count in COUNTS:
            null[f"{count} together"].append(any(passes(found[:count], True)))
            null[f"{count} one by one"].append(any(passes(found[:count], False)))
    power: dict[str, dict[str, float]] = {}
    for gain in GAINS:
        better = [simulated(difference, level, days, gain, random) for _ in range(runs)]
        for count in COUNTS:
            rows, met = [], []
            for one, others in zip(better, kept, strict=True):
                field = [one, *others[: count - 1]]
                p = corrected([other.p for other in field], [1] * count, 0)[0]
                rows.append(not one.failed(p))
                met.append(conditions(one, p))
            alone = {name: float(np.mean([row[name] for row in met])) for name in met[0]}
            power[f"{gain:.2%} of {count}"] = {"passes": float(np.mean(rows))} | alone
    return {
        "null": {name: float(np.mean(rows)) for name, rows in null.items()},
        "uncorrected_p_below_alpha": float(np.mean(significant)),
        "power": power,
    }


def study(losses: DailyLosses, timeframe: str, runs: int, months: int, seed: int = 0) -> dict[str, Any]:
    """The whole benchmark."""
    difference, level = pooled(losses)
    own = paired.paired(losses)
    mean = float(difference.mean())
    centred = difference - mean * level
    width = (own.high - own.low) * np.sqrt(own.days / MEASURED_DAYS[timeframe])
    days = round(months * 365.25 / 12)
    out: dict[str, Any] = {
        "pair": {"days": own.days, "ratio": own.ratio, "interval": [own.low, own.high], "better": own.better,
                 "months": own.months, "p": own.p},
        "days": days,
    }  # fmt: skip
    scale = WIDTHS[timeframe] / width
    spread = WIDTHS[timeframe] / (2 * NORMAL) * np.sqrt(MEASURED_DAYS[timeframe])
    gaussian = np.random.default_rng(seed).normal(0, spread, len(centred))
    noises = {
        "of the pair": centred,
        f"of the pair x {scale:.2f}": scale * centred,
        "Gaussian": gaussian - gaussian.mean(),
    }
    return out | {name: measure(noise, level, days, runs, seed) for name, noise in noises.items()}


def show(found: dict[str, Any]) -> None:
    pair = found["pair"]
    print(
        f"the pair: {pair['ratio']:.4f} [{pair['interval'][0]:.4f}, {pair['interval'][1]:.4f}] on {pair['days']} days, "
        f"better in {pair['better']} of {pair['months']} months; simulated: {found['days']} days"
    )
    for name, one in found.items():
        if not isinstance(one, dict) or "null" not in one:
            continue
        print(f"\nnoise {name}; p < .05 before correction: {one['uncorrected_p_below_alpha']:.1%}")
        print("\n| equal recipes | any passes |\n|---|---|")
        for label, share in one["null"].items():
            print(f"| {label} | {share:.1%} |")
        print("\n| true gain | passes | significant | gain | months | recent |\n|---|---|---|---|---|---|")
        for label, row in one["power"].items():
            print(f"| {label} | " + " | ".join(f"{share:.0%}" for share in row.values()) + " |")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=Path, required=True, help="the `--out` of a backtest")
    parser.add_argument("--of", default="har-universal", help="the recipe that is compared with its average")
    parser.add_argument(
        "--with", dest="second", default="robust-har-universal", help="the other one in the average"
    )
    parser.add_argument("--timeframe", default="1h", choices=list(WIDTHS))
    parser.add_argument("--months", type=int, default=37)
    parser.add_argument("--runs", type=int, default=1000, help="simulated backtests")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(argv)
    losses = read_pair(asked.rows, asked.of, asked.second, asked.timeframe)
    found = study(losses, asked.timeframe, asked.runs, asked.months, asked.seed)
    if asked.json:
        print(json.dumps(found))
    else:
        show(found)


if __name__ == "__main__":
    main()
