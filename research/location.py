"""What a location of the walk brings to its average with `har-universal`: `python -m research.location HOME 15m OUT`.

HOME holds ingested candles (`cpb ingest --source MIRROR --coins all --timeframes 15m`). Models are fitted before every
second month on the last 27 months and scored on the two months that follow, every fifth origin; what is kept of the
location is computed after one training that kept all of it. OUT: a file of losses per fit; printed: ratios of the mean
losses to `har-universal`'s, each coin relative to its random walk, with the interval by blocks of 7 days and the months.
"""

import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

import cpbmodels
from cpbmodels.arch import heads
from cpbmodels.data import EMBARGO, INTERVAL_SECONDS
from cpbmodels.data.columns import feature_frame
from cpbmodels.data.series import Series, with_cross_section
from cpbmodels.fleet.predict import predict
from schemas.identity import SeriesId
from tasks.judging.baselines import realised, reference
from tasks.judging.scores import crps
from tasks.market.klines import read_klines

KEPT = {
    "half": lambda x: 0.5 * x,
    "half, within .1": lambda x: (0.5 * x).clip(-0.1, 0.1),
    "within .1, then half": lambda x: 0.5 * x.clip(-0.1, 0.1),
    "a quarter": lambda x: 0.25 * x,
    "all, within .1": lambda x: x.clip(-0.1, 0.1),
    "all": lambda x: x,
}
HORIZON, STRIDE, TRAINING, VALIDATION = 10, 5, timedelta(days=822), timedelta(days=30)


def rows(times, start, end):
    first, last = np.searchsorted(times, [round(moment.timestamp() * 1e6) for moment in (start, end)])
    return int(first), int(last)


def month(number):
    return datetime(2024 + number // 12, number % 12 + 1, 1, tzinfo=UTC)


def fitted(coins, start, timeframe):
    gap = timedelta(seconds=EMBARGO * INTERVAL_SECONDS[timeframe])
    stop, found = start - gap - VALIDATION, []
    for one in coins:
        spans = {"train": (start - TRAINING, stop - gap), "validation": (stop, start - gap)}
        series = replace(one, spans={name: rows(one.times, *span) for name, span in spans.items()})
        if all(len(series.origins(name, 1, HORIZON)) for name in spans):
            found.append(series)
    return [series for series in found if len(series.origins("train", 1, HORIZON)) > 500]


def losses(coins, start, end, timeframe):
    learnt, usual = fitted(coins, start, timeframe), {"scope": "universal", "device": "cpu", "workers": 1}
    har = cpbmodels.ensemble(cpbmodels.train_fleet(learnt, "har", seeds=[1, 2, 3], **usual))
    (plain,), (walk,) = (
        cpbmodels.train_fleet(learnt, "walk", seeds=[1], **usual, location_share=share) for share in (0.0, 1.0)
    )
    heads.MAX_LOCATION = 1e9  # what is kept is computed below
    out = {}
    for place, series in enumerate(learnt):
        first, last = rows(series.times, start, end)
        origins = np.flatnonzero(series.usable(1, HORIZON))
        origins = origins[(origins >= first) & (origins < last)][::STRIDE]
        if len(origins) < 200:
            continue

        def of(model, share=None):
            config = model.config if share is None else model.config | {"location_share": share}
            return predict([replace(model, config=config)], [series], [origins])[0].quantiles

        base, bare = of(har), of(walk, 1e-12)
        unit = series.volatility[origins][:, None] * np.sqrt(np.arange(1, HORIZON + 1))
        location = (of(walk, 1.0) - bare)[..., 9] / unit
        found = {"har": base, "none": (base + of(plain)) / 2}
        for name, kept in KEPT.items():
            found[name] = (base + bare + (kept(location) * unit)[..., None]) / 2
        found["random walk"] = reference(series, series.origins("train", 1, HORIZON), origins, HORIZON)
        truth = realised(series, origins, HORIZON)
        values = {name: crps(quantiles, truth).mean(1) for name, quantiles in found.items()}
        values |= {"coin": np.full(len(origins), place), "time": series.times[origins]}
        for name, array in values.items():
            out.setdefault(name, []).append(array)
    return {name: np.concatenate(arrays) for name, arrays in out.items()}


def table(found):
    scale = [1 / of["random walk"][of["coin"] == c].mean() for of in found for c in np.unique(of["coin"])]
    counts = [int((of["coin"] == c).sum()) for of in found for c in np.unique(of["coin"])]
    weight = np.repeat(scale, counts)
    of = {name: np.concatenate([one[name] for one in found]) for name in found[0]}
    _, week = np.unique(of["time"] // (7 * 86_400_000_000), return_inverse=True)
    months = of["time"].astype("datetime64[us]").astype("datetime64[M]")
    draws = np.random.default_rng(0).integers(0, week.max() + 1, (2000, week.max() + 1))
    for name in ("none", *KEPT):
        text = f"{name:<22}"
        for base in ("har", "none"):
            own, other = (np.bincount(week, of[which] * weight) for which in (name, base))
            low, high = np.quantile(own[draws].sum(1) / other[draws].sum(1), [0.025, 0.975])
            text += f"  {own.sum() / other.sum():.4f} [{low:.4f}, {high:.4f}]"
        difference = (of[name] - of["har"]) * weight
        better = sum(difference[months == one].sum() < 0 for one in np.unique(months))
        print(f"{text}  lower than har in {better} of {len(np.unique(months))} months")
    print(f"{len(weight):,} origins")


def main():
    home, timeframe, out = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    out.mkdir(exist_ok=True)
    folder = home / "klines" / f"interval={timeframe}"
    symbols = sorted(path.name.split("=")[1] for path in folder.glob("symbol=*"))
    frames = [feature_frame(read_klines(home, SeriesId("spot", name, timeframe)), timeframe) for name in symbols]
    coins = [Series.from_columns(frame, name, timeframe) for frame, name in zip(frames, symbols, strict=True)]
    coins, found = with_cross_section(coins), []
    for number in range(0, 18, 2):
        path = out / f"{number:02}.npz"
        if not path.exists():
            np.savez(path, **losses(coins, month(number), month(number + 2), timeframe))
        with np.load(path) as kept:
            found.append(dict(kept))
    table(found)


if __name__ == "__main__":
    main()
