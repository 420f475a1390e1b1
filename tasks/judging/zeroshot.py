"""Zero-shot models as baselines: Chronos, TimesFM 2.5 and Kronos forecast from the last candles and learn nothing here.

A name is `chronos:MODEL`, `timesfm:MODEL` or `kronos:CLONE:MODEL:TOKENIZER`. MODEL and TOKENIZER are folders or names
on the Hub, and the model's own library loads them (extra `zeroshot`; Kronos has no package: CLONE is a clone of its
repository, whose code is run). An origin's input is the log-prices of its last 512 candles relative to its close, from
its own segment alone, so the output is the cumulative log-return that all models are judged on.

Origins are forecast in batches of one size, each with a seed of its own: the forecast from an origin is the same
whether or not later origins exist, which the check for look-ahead relies on.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpbmodels.data.series import Series
from schemas.errors import CpbError
from tasks.judging.baselines import Fit, Rows, import_extra
from tasks.judging.scores import LEVELS, Array

CONTEXT = 512
"""Candles that a model reads: the most that Kronos takes, and within the limits of the others."""

BATCH = 64
"""Origins that are forecast together."""

PATHS = 64
"""Sample paths of an origin, of models that draw paths: Kronos and the first Chronos."""

Predict = Callable[[Array, NDArray[np.int64], int], tuple[Array, Array]]
"""`predict(prices, times, horizon)` returns the model's levels [Q] and its quantiles [B, horizon, Q].

`prices` [B, 512, 4]: log-prices (open, high, low, close) relative to the close at the origin; NaN before the segment.
`times` [B, 512 + horizon]: open times of these and of the coming candles, in microseconds UTC.
"""


@dataclass(frozen=True)
class ZeroShot:
    """A loaded model as a baseline."""

    predict: Predict
    horizon: int

    def quantiles(self, series: Series, origins: Rows) -> Array:
        """Return [N, H, 19]; quantiles of a model that cross are sorted."""
        parts = [self._batch(series, origins[at : at + BATCH]) for at in range(0, len(origins), BATCH)]
        return np.concatenate(parts or [np.empty((0, self.horizon, len(LEVELS)))])

    def _batch(self, series: Series, origins: Rows) -> Array:
        """Return the quantiles of up to `BATCH` origins; the last origin fills the places that are left."""
        import torch

        assert series.times is not None  # every stored series has times
        rows = np.pad(origins, (0, BATCH - len(origins)), mode="edge")
        steps = np.arange(1 - CONTEXT, 1 + self.horizon)
        times = series.times[rows, None] + steps * (series.step_seconds * 1_000_000)
        read = np.maximum(rows[:, None] + steps[:CONTEXT], 0)
        known = (rows[:, None] + steps[:CONTEXT] >= 0) & (
            series.segments[read] == series.segments[rows, None]
        )
        prices = np.log(series.prices[read] / series.prices[rows, None, 3:])
        prices[~known] = np.nan
        with torch.random.fork_rng(), torch.inference_mode():
            torch.manual_seed(int(rows[0]))
            given, quantiles = self.predict(prices, times, self.horizon)
        return at_levels(np.sort(quantiles, axis=-1), given)[: len(origins)]


def zero_shot(name: str, device: str) -> Fit:
    """Return the fit of a zero-shot model, which loads it and reads no training origin; `device` as in `--device`."""

    def fit(series: Series, origins: Rows, horizon: int) -> ZeroShot:
        return ZeroShot(_loaded(name, device), horizon)

    return fit


def load(name: str, device: str) -> Predict:
    """Load a model through its own library.

    Raises:
        CpbError: the extra `zeroshot` is not installed, or the model cannot be loaded.
    """
    import torch

    from cpbmodels.fleet.plan import pick_device

    kind, _, model = name.partition(":")
    package, opened = _KINDS[kind]
    library = import_extra(package, "zeroshot")
    try:
        with torch.random.fork_rng():  # some libraries draw weights before they read them
            return opened(library, model, pick_device(device))
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise CpbError(
            f"baselines: {name} cannot be loaded ({reason}); give a folder that holds the model, or a name on the Hub "
            "where it can be reached",
            code="baseline-model", field="baselines",
        ) from error  # fmt: skip


_loaded = lru_cache(maxsize=1)(load)  # models are judged one after the other, each on all series and folds


def at_levels(quantiles: Array, given: Array) -> Array:
    """Return quantiles [..., 19] at the levels of a forecast, from those at ascending levels `given` [Q].

    Between levels, and beyond the outermost (Chronos-Bolt and TimesFM have .1 to .9), along a line in the normal score.
    """
    score = np.vectorize(NormalDist().inv_cdf)
    x, at = score(given), score(LEVELS)
    right = np.clip(np.searchsorted(x, at), 1, len(x) - 1)
    share = (at - x[right - 1]) / (x[right] - x[right - 1])
    found = quantiles[..., right - 1] * (1 - share) + quantiles[..., right] * share
    return np.maximum.accumulate(
        found, axis=-1
    )  # rounding may part equal quantiles by a bit in the wrong direction


def _chronos(chronos: Any, model: str, device: Any) -> Predict:
    """Open a Chronos, Chronos-Bolt or Chronos-2 model, which reads closes."""
    import torch

    pipeline = chronos.BaseChronosPipeline.from_pretrained(model, device_map=device, dtype=torch.float32)
    samples = pipeline.forecast_type is chronos.ForecastType.SAMPLES
    given = LEVELS if samples else np.asarray(pipeline.quantiles)
    options = {"num_samples": PATHS} if samples else {}

    def predict(prices: Array, times: NDArray[np.int64], horizon: int) -> tuple[Array, Array]:
        closes = list(torch.from_numpy(prices[..., 3]).float())
        found, _ = pipeline.predict_quantiles(
            closes, prediction_length=horizon, quantile_levels=given.tolist(), **options
        )
        return given, np.stack([np.float64(one).reshape(horizon, -1) for one in found])

    return predict


def _timesfm(timesfm: Any, model: str, device: Any) -> Predict:
    """Open a TimesFM 2.5 model, which reads closes."""
    from huggingface_hub import snapshot_download

    folder = model if Path(model).is_dir() else snapshot_download(model, allow_patterns="*.safetensors")
    opened = timesfm.TimesFM_2p5_200M_torch(torch_compile=False)
    opened.model.device, opened.model.device_count = (
        device,
        1,
    )  # it would take the first GPU whatever `--device` says
    opened.load_checkpoint(folder)
    opened.compile(
        timesfm.ForecastConfig(
            max_context=CONTEXT, max_horizon=opened.model.o, per_core_batch_size=BATCH, normalize_inputs=True,
            use_continuous_quantile_head=True, fix_quantile_crossing=True, infer_is_positive=False,
        )
    )  # fmt: skip
    given = np.asarray(opened.model.config.quantiles)

    def predict(prices: Array, times: NDArray[np.int64], horizon: int) -> tuple[Array, Array]:
        _, found = opened.forecast(horizon, list(prices[..., 3]))
        return given, np.asarray(found, dtype=np.float64)[..., 1:]  # the mean comes first

    return predict


def _kronos(pandas: Any, places: str, device: Any) -> Predict:
    """Open a Kronos model, which reads whole candles without volume, by the code in a clone of its repository."""
    clone, model, tokenizer = places.split(":")
    sys.path.insert(0, str(Path(clone).resolve()))
    try:
        kronos = import_module("model")  # the name of the package in the clone
    finally:
        sys.path.pop(0)
    opened = kronos.KronosPredictor(
        kronos.Kronos.from_pretrained(model).eval(), kronos.KronosTokenizer.from_pretrained(tokenizer).eval(),
        device=str(device), max_context=CONTEXT,
    )  # fmt: skip

    def predict(prices: Array, times: NDArray[np.int64], horizon: int) -> tuple[Array, Array]:
        stamps = [pandas.Series(pandas.to_datetime(row, unit="us")) for row in times]
        return LEVELS, np.stack(
            [_paths(row, when, horizon) for row, when in zip(prices, stamps, strict=True)]
        )

    def _paths(prices: Array, when: Any, horizon: int) -> Array:
        """Return quantiles [H, 19] of sample paths: it averages the samples of a call, so each path is its own row."""
        candles = pandas.DataFrame(100 * np.exp(prices), columns=["open", "high", "low", "close"]).bfill()
        before, after = when[:CONTEXT], when[CONTEXT:].reset_index(drop=True)
        paths = opened.predict_batch(
            [candles] * PATHS,
            [before] * PATHS,
            [after] * PATHS,
            pred_len=horizon,
            sample_count=1,
            verbose=False,
        )
        closes = np.log(
            np.maximum([path["close"] for path in paths], 1e-3) / 100
        )  # a drawn price may be negative
        return np.quantile(closes, LEVELS, axis=0).T

    return predict


_KINDS: dict[str, tuple[str, Callable[[Any, str, Any], Predict]]] = {
    "chronos": ("chronos", _chronos), "timesfm": ("timesfm", _timesfm), "kronos": ("pandas", _kronos),
}  # fmt: skip
"""The package of each kind, and what opens a model with it."""
