"""The score of a model on a series: its losses and the reference's on the same rows, with interval and test."""

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpbmodels.data.prediction import Prediction
from cpbmodels.data.series import Series
from schemas.chances import OUTCOMES, SCORED
from schemas.errors import MemberError
from tasks.judging import inference, scores, verdicts
from tasks.judging.scores import BAND_LEVELS, MEDIAN, TAILS, Array, realised
from tasks.storage.arrays import read_npz, write_npz

log = logging.getLogger("cpb")

LOSSES = ("crps", "mae", "tail")
"""Losses stored per origin (mean over steps), of the model and of the reference; tail: 5 % and 95 % pinball."""

P_OF = {"crps": "test_p"} | {f"{name}_brier": f"test_{name}_p" for name in SCORED}
"""The losses with an interval and a test, and the name of its p."""


@dataclass(frozen=True)
class MemberScore:
    """Metrics of a model on a series, and the data for pooling: losses per origin and means per step.

    `losses`: name -> [N], and `reference_NAME` -> [N]. `steps`: name -> [H], `reliability` [19].
    `times`: int64 [N], open time (µs UTC) of the last candle known at each origin; `step_us`: of a candle.
    """

    symbol: str
    timeframe: str
    architecture: str
    metrics: dict[str, float]
    times: NDArray[np.int64]
    losses: dict[str, Array]
    steps: dict[str, Array] = field(default_factory=dict)
    step_us: int = 0

    @property
    def horizon(self) -> int:
        """Number of steps ahead."""
        return len(self.steps["crps"])

    @property
    def verdict(self) -> str:
        """The finding as a sentence, with the Holm-corrected p if the correction has been applied."""
        return verdicts.verdict(self.metrics)

    def to_npz(self, path: Path) -> None:
        """Write the score as an npz file without pickle, atomically."""
        # JSON within the npz, in place of pickle: a file from elsewhere cannot run code when it is read.
        head = {k: v for k, v in asdict(self).items() if k not in ("times", "losses", "steps")}
        arrays: dict[str, Any] = {f"losses.{k}": v for k, v in self.losses.items()}
        arrays |= {f"steps.{k}": v for k, v in self.steps.items()}
        write_npz(path, arrays | {"head": np.asarray(json.dumps(head)), "times": self.times})

    @classmethod
    def from_npz(cls, path: Path) -> "MemberScore":
        """Read a file written by `to_npz`; raises `FileNotFoundError`, or `DamagedError` for any other content."""
        data = read_npz(path)
        head = json.loads(str(data["head"]))
        parts: dict[str, dict[str, Array]] = {"losses": {}, "steps": {}}
        for key, values in data.items():
            group, _, name = key.partition(".")
            if group in parts:
                parts[group][name] = values
        return cls(times=data["times"], losses=parts["losses"], steps=parts["steps"], **head)


def judge_member(
    series: Series,
    prediction: Prediction,
    reference: Array,
    *,
    architecture: str,
    seed: int = 0,
    chances: Mapping[str, Array] | None = None,
) -> MemberScore:
    """Score a member's forecasts against the reference's on the same origins.

    Args:
        series: the forecast series; its training span gives the scale of the MASE.
        prediction: origins [N] and quantiles [N, H, 19], cumulative log-returns.
        reference: quantiles [N, H, 19] of the reference at the same origins (`tasks.judging.baselines`).
        architecture: name of the model in reports.
        seed: seed of the bootstrap.
        chances: `tasks.judging.chance_scores.chance_scores` of the same forecasts.

    Raises:
        MemberError: no origins (code `no-origin`), or forecasts that are not finite (code `non-finite`).
    """
    quantiles, origins = prediction.quantiles, prediction.origins
    check_judgeable(f"{architecture}/{series.symbol}/{series.timeframe}", quantiles)
    # Losses are per origin and step, [N, H]; what is stored per origin is the mean over steps, as the test is of
    # origins and their overlap, not of single steps.
    truth = realised(series, origins, quantiles.shape[1])
    model_losses, reference_losses = _losses(quantiles, truth), _losses(reference, truth)
    # The MAE is compared with the last close itself, not with the slightly shifted median of the reference.
    reference_losses["mae"] = np.abs(truth)
    steps = _steps(quantiles, truth, model_losses, reference_losses)
    losses = {k: v.mean(axis=1) for k, v in model_losses.items()}
    losses |= {f"reference_{k}": v.mean(axis=1) for k, v in reference_losses.items()}
    for name, values in (chances or {}).items():
        steps[name] = values.mean(axis=0)
        if name.removeprefix("reference_") in P_OF:
            losses[name] = values.mean(axis=1)
    score = MemberScore(
        symbol=series.symbol,
        timeframe=series.timeframe,
        architecture=architecture,
        metrics=_metrics(series, quantiles, truth, losses, steps)
        | _in_price(series, origins, quantiles, truth),
        times=times_of(series, origins),
        losses=losses,
        steps=steps,
        step_us=step_us(series),
    )
    score.metrics.update(certainty(score, seed))
    for name in (name for name in (f"{of}_brier" for of in (*SCORED, OUTCOMES)) if name in steps):
        score.metrics[f"test_{name}"] = float(steps[name].mean())
        score.metrics[f"test_{name}_ratio"] = _ratio(steps, name)
        if name in P_OF:
            score.metrics.update(certainty(score, seed, name))
    return score


def check_judgeable(name: str, forecasts: Array) -> None:
    """Raise `MemberError` without forecasts [N, …] (`no-origin`) or for non-finite values (`non-finite`)."""
    if len(forecasts) == 0:
        raise MemberError(f"{name}: no test origin to judge; the test span is too short", code="no-origin")
    if not np.isfinite(forecasts).all():
        raise MemberError(
            f"{name}: the forecast holds values that are not finite; the training diverged", code="non-finite"
        )


def _losses(quantiles: Array, truth: Array) -> dict[str, Array]:
    """Return CRPS, |error of the median| and tail pinball, each [N, H]."""
    # Once for both: [N, H, 19] is the largest array of judging, tens of MB for years of hours.
    loss = scores.pinball(quantiles, truth)
    return {
        "crps": 2 * loss.mean(axis=-1),
        "mae": np.abs(truth - quantiles[..., MEDIAN]),
        "tail": loss[..., TAILS].mean(axis=-1),
    }


def _steps(
    quantiles: Array, truth: Array, model_losses: dict[str, Array], reference_losses: dict[str, Array]
) -> dict[str, Array]:
    hits, counted = scores.direction_hits(quantiles[..., MEDIAN], truth)
    steps = {k: v.mean(axis=0) for k, v in model_losses.items()}
    steps |= {f"reference_{k}": v.mean(axis=0) for k, v in reference_losses.items()}
    steps |= {f"coverage_{band}": scores.coverage(quantiles, truth, band) for band in BAND_LEVELS}
    steps |= {f"width_{band}": scores.width(quantiles, band) for band in BAND_LEVELS}
    return steps | {
        "hits": hits,
        "counted": counted,
        "rmse": scores.rmse(quantiles[..., MEDIAN], truth),
        "reference_rmse": scores.rmse(np.zeros_like(truth), truth),
        "reliability": scores.reliability(quantiles, truth),
    }


def _metrics(
    series: Series, quantiles: Array, truth: Array, losses: dict[str, Array], steps: dict[str, Array]
) -> dict[str, float]:
    # A step at which the price never moved has no direction to be right about: a coin toss.
    direction = np.where(steps["counted"] > 0, steps["hits"] / np.maximum(steps["counted"], 1), 0.5)
    metrics = {
        "test_n": len(truth),
        "test_crps": losses["crps"].mean(),
        "test_crps_ratio": _ratio(losses, "crps"),
        "test_crps_ratio_step_1": _ratio(steps, "crps", 0),
        f"test_crps_ratio_step_{truth.shape[1]}": _ratio(steps, "crps", -1),
        "test_mae": losses["mae"].mean(),
        "test_mae_ratio": _ratio(losses, "mae"),
        "test_rmse": steps["rmse"].mean(),
        "test_mase": scores.mase(quantiles[..., MEDIAN], truth, training_returns(series)),
        "test_directional_accuracy": direction.mean(),
        "test_directional_accuracy_step_1": direction[0],
        "test_tail_pinball_ratio": _ratio(losses, "tail"),
    }
    for band in BAND_LEVELS:
        metrics[f"test_coverage_{band}"] = steps[f"coverage_{band}"].mean()
        metrics[f"test_width_{band}"] = steps[f"width_{band}"].mean()
    return {name: float(value) for name, value in metrics.items()}


def _in_price(series: Series, origins: NDArray[np.int64], quantiles: Array, truth: Array) -> dict[str, float]:
    mae, rmse = scores.price_errors(quantiles[..., MEDIAN], truth, series.prices[origins, 3])
    return {"test_mae_price": float(mae.mean()), "test_rmse_price": float(rmse.mean())}


def _ratio(losses: dict[str, Array], name: str, at: int | slice = slice(None)) -> float:
    model_losses, reference_losses = losses[name][at].mean(), losses[f"reference_{name}"][at].mean()
    # a constant price is forecast without loss
    return float(model_losses / reference_losses) if reference_losses > 0 else 1.0


def certainty(score: MemberScore, seed: int, name: str = "crps") -> dict[str, float]:
    """Return `test_NAME_ratio_low`, `_high` (block bootstrap) and p (Diebold-Mariano) of a loss per origin."""
    # The same length for interval and test, so that both rest on the same idea of what is independent.
    length = inference.block_length(score.horizon, len(score.times))
    ids = inference.block_ids(score.times, length * score.step_us)
    model_losses, reference_losses = score.losses[name], score.losses[f"reference_{name}"]
    low, high = inference.bootstrap_interval([ids], [model_losses], [reference_losses], seed)
    _, p = inference.diebold_mariano(model_losses - reference_losses, lags=length)
    return {f"test_{name}_ratio_low": low, f"test_{name}_ratio_high": high, P_OF[name]: p}


def training_returns(series: Series) -> Array:
    """Return the one-candle log-returns of the training span, within segments; [1] if the price never moved."""
    first, last = series.spans["train"]
    close = np.log(series.prices[first:last, 3])
    # Across a hole in the candles, or a leap of the price level, a difference is no return.
    returns = np.diff(close)[np.diff(series.segments[first:last]) == 0]
    return returns if np.any(returns) else np.ones(1)  # scale of 100 %: keeps MASE finite


def times_of(series: Series, origins: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the open times [N] of the origins (µs UTC), or their rows if the series has no times."""
    return series.times[origins] if series.times is not None else origins.astype(np.int64)


def step_us(series: Series) -> int:
    """Return the length of a candle in the unit of `times_of`."""
    if series.times is None or len(series.times) < 2:
        return 1
    return int(np.diff(series.times).min())
