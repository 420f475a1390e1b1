"""What `average` gains on `har-universal` on the same rows: `python -m research.skill --source FOLDER --home FOLDER`.

Rolling origin over calendar months (`PLANS`), every origin, all coins whose month has no hole. All models are fitted
anew before every fourth month (`--refit 1`: every month), on the same candles: the last 24 months (15m: up to 27, never
fewer than nine), of which the newest are for validation, with an embargo between the spans. `alone`: without the
market's columns.

A month's losses are stored in `HOME/skill`, one file a month, so an interrupted computation goes on where it was;
`--table` prints what is there. The recipes were chosen on these very months: what comes out is reproduced, not
confirmed.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import torch

import cpbmodels
from cpbmodels.data.columns import feature_frame
from cpbmodels.data.figures import EMBARGO, INTERVAL_SECONDS
from cpbmodels.data.series import Series
from cpbmodels.data.wide import with_market
from cpbmodels.fleet.member import Member
from research._shared import HORIZON, ingested
from tasks.judging.baselines import realised, reference
from tasks.judging.inference import block_ids, bootstrap_weights, diebold_mariano, interval, ratio_draws
from tasks.judging.scores import BANDS, Array, crps
from tasks.market.klines import read_klines
from tasks.storage.records import read_npz, write_npz

SEEDS, REFIT = (1, 2, 3), 4  # seeds, months
LEAST_ORIGINS = 500  # of a coin in the training span, for its random walk
WEEK_US = 7 * 86_400_000_000
GOALS = {
    "1h": {"har + line": 0.9995, "har + walk": 0.9990},
    "15m": {"har + walk": 0.9991},
}
WHOLE_MONTHS, MAX_BAND_POINTS, MAX_LOW = 6, 1.5, 1.002
SHORT = timedelta(days=274)  # nine months: what the mirror with a short past has at 15m


@dataclass(frozen=True)
class Plan:
    """The months of a timeframe, and the training before each."""

    first: datetime
    last: datetime
    training: timedelta
    validation: timedelta


def _month(year: int, month: int) -> datetime:
    return datetime(year + (month - 1) // 12, (month - 1) % 12 + 1, 1, tzinfo=UTC)


PLANS = {
    "1h": Plan(_month(2022, 6), _month(2025, 5), timedelta(days=730), timedelta(days=60)),
    "15m": Plan(_month(2024, 1), _month(2025, 6), timedelta(days=822), timedelta(days=30)),
}


def months(plan: Plan) -> Iterator[tuple[datetime, datetime]]:
    """Start and end of each month."""
    start = plan.first
    while start <= plan.last:
        end = _month(start.year, start.month + 1)
        yield start, end
        start = end


def load(source: str, timeframe: str, home: Path) -> list[Series]:
    """All coins of the mirror with their market, without spans."""
    _, names = ingested(home, source, "all", timeframe)
    found = []
    for name in names:
        klines = read_klines(home, name)
        found.append(Series.from_columns(feature_frame(klines, timeframe), name.label, timeframe))
    return with_market(found)


def spanned(coins: Sequence[Series], plan: Plan, start: datetime, training: timedelta) -> list[Series]:
    """The coins with the training and validation span before `start`; those that have nothing to learn from are out."""
    gap = timedelta(seconds=EMBARGO * INTERVAL_SECONDS[coins[0].timeframe])
    stop = start - gap - plan.validation
    found = []
    for one in coins:
        assert one.times is not None
        spans = {"train": (start - training, stop - gap), "validation": (stop, start - gap)}
        rows = {name: _rows(one.times, *span) for name, span in spans.items()}
        series = replace(one, spans=rows)
        if all(len(series.origins(name, 1, HORIZON)) for name in rows):
            found.append(series)
    return found


def _rows(times: Array, start: datetime, end: datetime) -> tuple[int, int]:
    a, b = np.searchsorted(times, [round(one.timestamp() * 1e6) for one in (start, end)])
    return int(a), int(b)


def origins_of(one: Series, start: datetime, end: datetime) -> Array:
    """All origins of a month; none where a candle is missing in it (or it ends before its last day does)."""
    assert one.times is not None
    a, b = _rows(one.times, start, end)
    newest = max(round(end.timestamp() * 1e6) - one.step_seconds * 1_000_000, 0)
    newest = min(newest, LAST_CANDLE_US[one.timeframe])
    wanted = (newest - round(start.timestamp() * 1e6)) // (one.step_seconds * 1_000_000) + 1
    if b - a != wanted or len(np.unique(one.segments[a:b])) != 1:
        return np.zeros(0, np.int64)
    rows = np.flatnonzero(one.usable(1, HORIZON))
    return rows[(rows >= a) & (rows < b)]


_END = datetime(2025, 6, 5, 23, tzinfo=UTC)  # the mirror's last hour
LAST_CANDLE_US = {
    "1h": round(_END.timestamp() * 1e6),
    "15m": round((_END + timedelta(minutes=45)).timestamp() * 1e6),
}


def train(coins: Sequence[Series], architecture: str, folder: Path) -> Member:
    """A universal model; kept in `folder` and read from it again."""
    if (folder / "config.json").exists():
        return cpbmodels.load(folder)
    seeds = SEEDS if architecture == "har" else SEEDS[:1]
    copies = cpbmodels.train_fleet(
        list(coins), architecture, seeds=list(seeds), scope="universal", device="cpu", workers=1
    )
    model = cpbmodels.ensemble(copies) if len(copies) > 1 else copies[0]
    model.save(folder)
    return model


def models_of(coins: Sequence[Series], plan: Plan, start: datetime, folder: Path) -> dict[str, Member]:
    """The models fitted before `start`."""
    learnt, name = spanned(coins, plan, start, plan.training), f"{coins[0].timeframe}-{start:%Y-%m}"
    models = {one: train(learnt, one, folder / f"{name}-{one}") for one in ("har", "line", "walk")}
    if coins[0].timeframe == "15m":
        short = spanned(coins, plan, start, SHORT)
        models["har, nine months"] = train(short, "har", folder / f"{name}-short")
    return models


def month_of(
    coins: Sequence[Series],
    plan: Plan,
    span: tuple[datetime, datetime],
    fitted: datetime,
    models: Mapping[str, Member],
) -> dict[str, Array]:
    """The losses of a month: `coin` and `time` [N], and by model `NAME` [N] (mean over the steps) and `NAME inside`
    [N, 2], the share of steps within the 80 and 90 % band. `B1` is the random walk with EWMA volatility."""
    learnt = spanned(coins, plan, fitted, plan.training)
    out: dict[str, list[Array]] = {}
    known = {one.symbol: one for one in learnt}
    for place, one in enumerate(coins):
        rows, series = origins_of(one, *span), known.get(one.symbol)
        past = series.origins("train", 1, HORIZON) if series is not None else np.zeros(0, np.int64)
        if not len(rows) or len(past) < LEAST_ORIGINS or series is None:
            continue
        alone = replace(series, market=None)
        found = {
            name: cpbmodels.predict([model], [series], [rows])[0].quantiles for name, model in models.items()
        }
        found |= {
            f"{name} alone": cpbmodels.predict([models[name]], [alone], [rows])[0].quantiles
            for name in ("line", "walk")
        }
        found |= {
            f"har + {name}": (found["har"] + found[name]) / 2 for name in list(found) if "har" not in name
        }
        found["B1"] = reference(series, past, rows, HORIZON)
        truth = realised(series, rows, HORIZON)
        assert series.times is not None
        losses = {"coin": np.full(len(rows), place), "time": series.times[rows]}
        for name, quantiles in found.items():
            losses[name] = crps(quantiles, truth).mean(axis=1)
            edges = [BANDS[80], BANDS[90]]
            inside = [
                ((truth >= quantiles[..., a]) & (truth <= quantiles[..., b])).mean(axis=1) for a, b in edges
            ]
            losses[f"{name} inside"] = np.stack(inside, axis=1)
        for name, values in losses.items():
            out.setdefault(name, []).append(values)
    return {name: np.concatenate(parts) for name, parts in out.items()}


def folder_of(home: Path, refit: int) -> Path:
    """Where the losses of models that are refitted every so many months are stored."""
    return home / ("skill" if refit == REFIT else f"skill-{refit}")


def compute(source: str, timeframe: str, home: Path, refit: int, newest: int | None = None) -> None:
    """Compute and store the months that are not stored yet, oldest first; `newest`: of so many at the end."""
    plan, folder = PLANS[timeframe], folder_of(home, refit)
    folder.mkdir(parents=True, exist_ok=True)
    coins, models, of = load(source, timeframe, home), dict[str, Member](), None
    spans = list(months(plan))
    for number, (start, end) in enumerate(spans):
        path = folder / f"{timeframe}-{start:%Y-%m}.npz"
        if path.exists() or (newest and number < len(spans) - newest):
            continue
        fitted = spans[number - number % refit][0]
        if fitted != of:
            models, of = models_of(coins, plan, fitted, home / "models"), fitted
        found = month_of(coins, plan, (start, end), fitted, models)
        write_npz(path, {"coins": np.array([one.symbol for one in coins]), **found})
        mean = {name: found[name].mean() / found["har"].mean() for name in found if f"{name} inside" in found}
        print(path.stem, "  ".join(f"{name} {value:.4f}" for name, value in mean.items()), flush=True)


# ---- the table


@dataclass(frozen=True)
class Rows:
    """The losses of all stored months: coin names, and arrays as in `month_of`."""

    coins: tuple[str, ...]
    arrays: Mapping[str, Array]

    @classmethod
    def read(cls, home: Path, timeframe: str, refit: int = REFIT) -> "Rows":
        """All months that are there."""
        stored = [read_npz(path) for path in sorted(folder_of(home, refit).glob(f"{timeframe}-*.npz"))]
        files = [one for one in stored if "coin" in one]  # a month may have a hole in every coin
        if not files:
            raise SystemExit(
                f"no month at {timeframe} is stored in {folder_of(home, refit)}: leave out --table"
            )
        names = [name for name in files[0] if name != "coins"]
        return cls(
            tuple(files[0]["coins"].tolist()),
            {name: np.concatenate([one[name] for one in files]) for name in names},
        )

    def compared(self, name: str, other: str, kept: Array | None = None) -> tuple[float, float, float]:
        """The ratio of the mean losses, each over the coin's B1, and its interval by blocks of 7 days."""
        chosen = np.ones(len(self.arrays["time"]), bool) if kept is None else kept
        coin, time = self.arrays["coin"][chosen].astype(int), self.arrays["time"][chosen]
        own, theirs, b1 = (self.arrays[key][chosen] for key in (name, other, "B1"))
        level = np.bincount(coin, b1, len(self.coins)) / np.maximum(
            np.bincount(coin, minlength=len(self.coins)), 1
        )
        blocks = block_ids(time, WEEK_US)
        sums = [np.bincount(blocks, values / level[coin])[:, None] for values in (own, theirs)]
        held = sums[1][:, 0] > 0
        weights = bootstrap_weights(int(held.sum()))
        low, high = interval(ratio_draws(sums[0][held], sums[1][held], weights))
        return float(sums[0].sum() / sums[1].sum()), low, high

    def p(self, name: str, other: str) -> float:
        """Two-sided p of no difference, Newey-West on days with a week of lags."""
        _, day = np.unique(self.arrays["time"] // 86_400_000_000, return_inverse=True)
        difference = np.bincount(day, self.arrays[name] - self.arrays[other]) / np.bincount(day)
        return diebold_mariano(difference, 7)[1]

    def whole(self) -> list[int]:
        """The coins that have at least `WHOLE_MONTHS` whole months of rows."""
        day, coin = self.arrays["time"] // 86_400_000_000, self.arrays["coin"].astype(int)
        held = np.unique(np.stack([coin, self.month, day]), axis=1)  # days with rows
        cells, days = np.unique(held[:2], axis=1, return_counts=True)
        count = np.bincount(cells[0][days >= 28], minlength=len(self.coins))
        return [int(c) for c in np.flatnonzero(count >= WHOLE_MONTHS)]

    @property
    def month(self) -> Array:
        """The month of each row, as months since 1970."""
        return self.arrays["time"].astype("datetime64[us]").astype("datetime64[M]").astype(np.int64)


def table(home: Path, timeframe: str, refit: int = REFIT) -> None:
    """Print the table of a timeframe."""
    rows = Rows.read(home, timeframe, refit)
    month, coin = rows.month, rows.arrays["coin"].astype(int)
    there = {(int(m), int(c)) for m, c in zip(month, coin, strict=True)}
    all_months = sorted({m for m, _ in there})
    labels = [str(np.datetime64(m, "M")) for m in all_months]
    planned = sum(1 for _ in months(PLANS[timeframe]))
    left_out = len(all_months) * len(rows.coins) - len(there)
    print(f"{timeframe}: {labels[0]} to {labels[-1]}, {len(all_months)} of {planned} months, {len(month):,} origins, "
          f"{len(there)} months of coins, {left_out} left out for a hole or too short a past")  # fmt: skip
    names = [name for name in rows.arrays if f"{name} inside" in rows.arrays]
    for name in names:
        ratio, low, high = rows.compared(name, "har")
        better = sum(rows.compared(name, "har", month == m)[0] < 1 for m in all_months)
        bands = 100 * rows.arrays[f"{name} inside"].mean(axis=0)
        print(f"  {name:<18} {ratio:.4f} [{low:.4f}, {high:.4f}]  p {rows.p(name, 'har'):.4f}  lower in {better} of "
              f"{len(all_months)} months  bands {bands[0]:.1f} / {bands[1]:.1f}")  # fmt: skip
    for name, goal in GOALS[timeframe].items():
        by_month = {label: rows.compared(name, "har", month == m)[0]
                    for label, m in zip(labels, all_months, strict=True)}  # fmt: skip
        print(f"  {name} by month: ", "  ".join(f"{label} {ratio:.4f}" for label, ratio in by_month.items()))
        by_coin = {rows.coins[c]: rows.compared(name, "har", coin == c) for c in rows.whole()}
        figures = (f"{one} {r:.4f} [{low:.4f}, {high:.4f}]" for one, (r, low, high) in by_coin.items())
        print(f"  {name} by coin, with at least {WHOLE_MONTHS} whole months: ", "  ".join(figures))
        ratio, worst = rows.compared(name, "har")[0], max(by_coin, key=lambda one: by_coin[one][1])
        bands = np.abs(100 * rows.arrays[f"{name} inside"].mean(axis=0) - [80, 90]).max()
        for text, met in (
            (f"ratio {ratio:.4f}, at most {goal}", round(ratio, 4) <= goal),
            (f"bands off by {bands:.1f} points, at most {MAX_BAND_POINTS}", bands <= MAX_BAND_POINTS),
            (f"lower end of the worst coin, {worst}: {by_coin[worst][1]:.4f}, at most {MAX_LOW}",
             by_coin[worst][1] <= MAX_LOW),
        ):  # fmt: skip
            print(f"  {name}, goal: {text}: {'met' if met else 'NOT MET'}")


def refits(home: Path, timeframe: str, refit: int) -> None:
    """Print what refits every so many months bring against those every `REFIT` months, on the same rows."""
    usual, often = Rows.read(home, timeframe), Rows.read(home, timeframe, refit)
    keys = [
        one.arrays["time"] * len(one.coins) + one.arrays["coin"].astype(np.int64) for one in (usual, often)
    ]
    _, here, there = np.intersect1d(*keys, return_indices=True)
    for name in ("har", "line", "walk", "har + line", "har + walk"):
        both = {key: usual.arrays[key][here] for key in ("coin", "time", "B1")}
        pair = Rows(
            usual.coins, both | {"often": often.arrays[name][there], "usual": usual.arrays[name][here]}
        )
        ratio, low, high = pair.compared("often", "usual")
        print(f"  {name}, refitted every {refit} months against every {REFIT}: {ratio:.4f} [{low:.4f}, {high:.4f}] on "
              f"{len(here):,} origins")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", required=True, help="a mirror of klines with a long past, folder or URL")
    parser.add_argument("--home", required=True, type=Path, help="folder for candles, models and losses")
    parser.add_argument("--timeframe", choices=sorted(PLANS), default="1h")
    parser.add_argument("--refit", type=int, default=REFIT, help="months between two refits")
    parser.add_argument("--newest", type=int, help="compute this many months alone, the newest")
    parser.add_argument("--table", action="store_true", help="print the table of what is stored")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if not asked.table:
        compute(asked.source, asked.timeframe, asked.home, asked.refit, asked.newest)
    table(asked.home, asked.timeframe, asked.refit)
    if asked.refit != REFIT and folder_of(asked.home, REFIT).exists():
        refits(asked.home, asked.timeframe, asked.refit)


if __name__ == "__main__":
    main()
