"""Small real models, published to a fake Hub."""

import json
from dataclasses import replace
from functools import cache

import numpy as np
import polars as pl
from safetensors.numpy import save_file

from cpbmodels import Series, train_fleet
from cpbmodels.data.series import with_cross_section
from schemas.identity import SeriesId
from tasks.hub.publish import publish_tree
from tasks.hub.tree import build_tree
from tasks.storage.model_folder import file_digests
from tasks.tracking.champions import Champion

REPO = "alice/cpb-models"


def candles(rows=700, seconds=3600, seed=0, last=1_748_736_000):
    """A random walk; `open_time` in seconds since 1970, the last candle holds `last`."""
    draw = np.random.default_rng(seed)
    close = 100 * np.exp(np.cumsum(draw.standard_normal(rows) * 0.01))
    opened = np.concatenate([[100.0], close[:-1]])
    return pl.DataFrame(
        {
            "open_time": (np.arange(rows) - rows + 1) * seconds + last // seconds * seconds,
            "open": opened,
            "high": np.maximum(opened, close) * 1.002,
            "low": np.minimum(opened, close) * 0.998,
            "close": close,
            "volume": draw.uniform(1, 2, rows),
        }
    )


def series(symbol="BTCUSDT", timeframe="1h", seed=0):
    seconds = SeriesId("spot", symbol, timeframe).seconds
    return Series.from_frame(candles(seconds=seconds, seed=seed), symbol, timeframe)


def trained(folder, symbol="BTCUSDT", timeframe="1h", market="spot", seed=0, architecture="har"):
    """A champion that was trained on a random walk of its own; an average also on those of two other coins."""
    member = _member(symbol, timeframe, market, seed, architecture)
    member.save(folder, extra={"market": market, "symbol": symbol})
    tags = {"architecture": architecture, "files": json.dumps(file_digests(folder))}
    return Champion(SeriesId(market, symbol, timeframe), "1", "run", folder, {"test_crps_ratio": 0.9}, tags)


@cache
def _member(symbol, timeframe, market, seed, architecture):
    walk = replace(series(symbol, timeframe, seed), symbol=SeriesId(market, symbol, timeframe).label)
    with_others, *_ = with_cross_section(
        [walk, *(series(f"OTHER{n}USDT", timeframe, seed + n) for n in (1, 2))]
    )
    options = {"epochs": 1, "steps_per_epoch": 2, "device": "cpu"}
    (member,) = train_fleet([with_others], architecture, "smoke", seeds=[seed], **options)
    return member


def publish_models(tmp_path, *champions):
    """Publish champions as one commit, and return its hash."""
    return publish_tree(build_tree(champions, tmp_path / "tree", REPO), REPO).oid


def champion(
    folder, symbol="BTCUSDT", timeframe="1h", ratio=0.98, seed=0, market="spot", damage="", **metrics
):
    folder.mkdir(parents=True, exist_ok=True)
    weights = np.random.default_rng(seed).standard_normal((64, 8)).astype(np.float32)
    save_file({"w": weights}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"architecture": "har", "symbol": symbol}))
    (folder / "forecast.png").write_bytes(b"\x89PNG" + bytes(50))
    (folder / "secret.txt").write_text("not part of a model folder")
    scores = {"test_crps_ratio": ratio, "test_directional_accuracy": 0.5} | metrics
    tags = {"architecture": "har", "verdict": "better (x)", "files": json.dumps(file_digests(folder))}
    return Champion(SeriesId(market, symbol, timeframe), "3", "run", folder, scores, tags, damage)
