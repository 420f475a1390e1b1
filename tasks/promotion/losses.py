"""Tonight's and the registered models in the gate's form, and their losses on the same rows: of tonight's models from
their score files, of registered models recomputed.

A registered model is applied to tonight's features, so both use the same candles, including corrected candles. All
models of the same shape forecast as a fleet: 40 series with 2,880 origins each take seconds.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

import cpbmodels
from cpbmodels.data.cross_section import CrossSection
from cpbmodels.data.series import Series, instant
from cpbmodels.data.wide import NO_MARKET
from schemas.decision import Compared
from schemas.errors import DamagedError
from schemas.handover import Judgement, SeriesRecord
from schemas.identity import Recipe, SeriesId
from tasks.judging.gate import GateModel, gate_model
from tasks.judging.inference import not_worse
from tasks.judging.member import MemberScore
from tasks.judging.score_files import score_file
from tasks.judging.scores import Array, pinball, realised
from tasks.signals.feature_files import cross_sections, market_key
from tasks.storage.model_folder import knows_first, read_config
from tasks.tracking.champions import Champion
from tasks.tracking.tags import RECIPE

_DECIDES = "validation_crps_ratio"

_AT_ONCE = 8
"""Number of models with forecasts in memory: 2,880 origins x 10 steps x 19 quantiles take 4.4 MB each."""


@dataclass(frozen=True)
class TrainedCandidate:
    """A model of tonight in the gate's form, with its judgement."""

    model: GateModel
    judgement: Judgement


def trained_candidate(judgement: Judgement, forced: str) -> TrainedCandidate:
    """Return a judged model of a run in the gate's form; `forced` as in `GateModel`."""
    folder = judgement.folder / "model"
    model = gate_model(
        judgement.model.series,
        folder,
        read_config(folder),
        run_id=judgement.run_id,
        validation=judgement.metrics.get(_DECIDES, math.nan),
        forced=forced,
        knows_first=knows_first(folder),
    )
    return TrainedCandidate(model, judgement)


def registered_model(champion: Champion) -> GateModel:
    """Return a registered model in the gate's form; a damaged model with the readable tags and configuration."""
    validation = champion.metrics.get(_DECIDES, math.nan)
    registered: dict[str, Any] = {
        "run_id": champion.run_id,
        "version": champion.version,
        "validation": validation,
        "knows_first": knows_first(champion.folder),
    }
    try:
        model = gate_model(
            champion.series,
            champion.folder,
            read_config(champion.folder),
            damage=champion.damage,
            **registered,
        )
    except (DamagedError, TypeError, ValueError) as error:  # for example an invalid date after a bit error
        model = GateModel(
            series=champion.series,
            recipe=Recipe(champion.architecture, champion.preset, ""),
            folder=champion.folder,
            market=champion.series.market,
            damage=champion.damage or str(error),
            **registered,
        )
    recorded = champion.tags.get(RECIPE, "")
    # If the folder is damaged, the registry's recipe is used; its candles, span and horizon still exclude older models.
    return (
        replace(model, recipe=Recipe.parse(recorded)) if model.damage and recorded.count("/") == 2 else model
    )


@dataclass(frozen=True)
class Losses:
    """CRPS of a model, mean over its steps, per origin: `crps` [N] in log-return.

    `times` [N]: open time (µs UTC) of the last candle known at each origin, ascending.
    """

    times: NDArray[np.int64]
    crps: Array

    def since(self, start: datetime | None) -> "Losses":
        """Return the losses at origins whose last known candle opens at `start` or later."""
        if start is None:
            return self
        kept = self.times >= round(start.timestamp() * 1e6)
        return Losses(self.times[kept], self.crps[kept])


def compare(candidate: Losses, incumbent: Losses, *, horizon: int, step_us: int) -> Compared | None:
    """Return the comparison of two models on their common origins; None if there are none."""
    # Paired: the same origins for both, so that a calm or stormy week counts for neither.
    times, i, j = np.intersect1d(candidate.times, incumbent.times, return_indices=True)
    if len(times) == 0:
        return None
    ratio, low, high = not_worse(candidate.crps[i], incumbent.crps[j], times, horizon, step_us)
    first, last = (instant(int(t) + step_us) for t in (times[0], times[-1]))
    return Compared(first=first, last=last, n=len(times), ratio=ratio, low=low, high=high)


def _origins(series: Series, model: "cpbmodels.Member", candidate: GateModel) -> NDArray[np.int64]:
    """Return the origins as judging selects them: within the candidate's test span, with all targets before its end."""
    assert series.times is not None
    assert candidate.tested_from is not None
    assert candidate.tested_until is not None
    span = candidate.tested_from, candidate.tested_until
    edges = np.searchsorted(series.times, [round(t.timestamp() * 1e6) for t in span])
    # All targets before the end of the span: the candidate was stopped by candles after it.
    rows = np.flatnonzero(series.usable(model.context, model.horizon))
    return rows[(rows >= edges[0]) & (rows + model.horizon < edges[1])].astype(np.int64)


def _losses(series: Series, forecast: "cpbmodels.Prediction") -> Losses:
    assert series.times is not None
    # Rounded like the forecasts that judging scored, so that a model compared with itself gives a ratio of 1.
    quantiles = forecast.quantiles.astype(np.float32).astype(np.float64)
    # CRPS = 2 ∫ pinball over quantile levels: the mean over 19 equally spaced levels approximates the
    # integral.
    truth = realised(series, forecast.origins, quantiles.shape[1])
    return Losses(series.times[forecast.origins], 2 * pinball(quantiles, truth).mean(axis=(1, 2)))


class LossTable:
    """Losses by model, or the error for losses that cannot be read; `read` reads a series' features."""

    def __init__(self, read: Callable[[SeriesRecord], Series]) -> None:
        self._read = read
        self._losses: dict[str, Losses | DamagedError] = {}
        self._cross_sections: dict[tuple[str, str], CrossSection] = {}

    def predict(self, wanted: Iterable[tuple[TrainedCandidate, GateModel]]) -> None:
        """Compute the missing losses of registered models on tonight's test spans, all together."""
        todo = [
            (registered, candidate)
            for candidate, registered in wanted
            if self._key(registered) not in self._losses
        ]
        records = {candidate.model.series: candidate.judgement.features for _, candidate in todo}
        # In parts, since each holds features and forecasts of its series in memory.
        for first in range(0, len(todo), _AT_ONCE):
            self._predict(todo[first : first + _AT_ONCE], records)

    def _predict(
        self,
        wanted: Iterable[tuple[GateModel, TrainedCandidate]],
        records: Mapping[SeriesId, SeriesRecord],
    ) -> None:
        """Compute these losses; a model that cannot forecast from tonight's features has a `DamagedError`.

        Args:
            records: the features of all coins, for models that read what coins share.
        """
        # Torch: commands that show champions import this module.
        from cpbmodels.fleet.predict import predict_each

        keys, models, all_series, origins = [], [], [], []
        for registered, candidate in wanted:
            features = candidate.judgement.features
            series = self._read(features)
            try:
                model = cpbmodels.load(registered.folder)
                # What coins share is computed of all coins of the run once, and serves every model that
                # reads it.
                if NO_MARKET in model.config["features"]:
                    shared = market_key(features.series)
                    if shared not in self._cross_sections:
                        self._cross_sections |= cross_sections(
                            {coin: self._read(record) for coin, record in records.items()}
                        )
                    series = replace(series, cross_section=self._cross_sections[shared])
                series.columns(tuple(model.config["features"]))
            except cpbmodels.ModelError as error:
                self._losses[self._key(registered)] = DamagedError(str(error), field=str(registered.folder))
                continue
            keys.append(self._key(registered))
            models.append(model)
            all_series.append(series)
            origins.append(_origins(series, model, candidate.model))
        forecasts = predict_each(models, all_series, origins) if models else []
        for key, series, forecast in zip(keys, all_series, forecasts, strict=True):
            # A model whose folder is whole may still refuse, as with a forecast that is not finite.
            if isinstance(forecast, cpbmodels.ModelError):
                self._losses[key] = DamagedError(str(forecast))
            else:
                self._losses[key] = _losses(series, forecast)

    def losses_of(self, model: GateModel | TrainedCandidate) -> Losses | DamagedError:
        """Return a model's losses; call `predict` first for a registered model."""
        key = self._key(model.model if isinstance(model, TrainedCandidate) else model)
        if key not in self._losses and isinstance(model, TrainedCandidate):
            path = score_file(model.judgement.folder)
            try:
                score = MemberScore.from_npz(path)
                self._losses[key] = Losses(score.times, score.losses["crps"])
            except FileNotFoundError:
                self._losses[key] = DamagedError(f"{path} is missing", field=str(path))
            except DamagedError as error:
                self._losses[key] = error
        return self._losses[key]

    def compared(self, candidate: TrainedCandidate, incumbent: GateModel) -> Compared | DamagedError | None:
        """Compare on the origins that are in tonight's test span and in the incumbent's."""
        candidate_losses, incumbent_losses = self.losses_of(candidate), self.losses_of(incumbent)
        # Only the incumbent's damage is told here: the caller has looked at the candidate's own.
        if isinstance(candidate_losses, DamagedError) or isinstance(incumbent_losses, DamagedError):
            return incumbent_losses if isinstance(incumbent_losses, DamagedError) else None
        # A model whose folder does not record its spans may have been trained on these rows, which flatters it.
        mine = candidate_losses.since(incumbent.tested_from)
        step_us = candidate.model.series.seconds * 1_000_000
        return compare(mine, incumbent_losses, horizon=candidate.model.horizon, step_us=step_us)

    @staticmethod
    def _key(model: GateModel) -> str:
        return f"{model.series.name}/{model.run_id}"
