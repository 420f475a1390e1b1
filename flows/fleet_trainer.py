"""Trains `cpbmodels` fleets for a backtest: folds of per-coin models side by side, universal models fold by fold."""

import zlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import cpbmodels
from cpbmodels.series import Series
from schemas.config import UNIVERSAL, TrainConfig
from schemas.errors import MemberError
from tasks.judging.backtest import FoldSeries, Forecaster, Forecasts


@dataclass
class FleetTrainer:
    """Trains one architecture with `cpbmodels`; keeps the loss histories for the report."""

    name: str
    config: TrainConfig
    histories: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def __call__(self, loaded: Sequence[FoldSeries]) -> Forecaster:
        """Return a forecaster of the trained members; a series without a window of theirs gets the reason instead."""
        reasons = [self.why_not(one) for one in loaded]
        able = [one for one, reason in zip(loaded, reasons, strict=True) if not reason]
        trained = self._trained(able) if able else []
        for one, member in zip(able, trained, strict=True):
            self.histories.setdefault(
                f"{self.name} {one.series.symbol} {one.series.timeframe}", member.history
            )

        def forecast(series: Sequence[Series], split: str) -> list[Forecasts | MemberError]:
            asked = [one for one, reason in zip(series, reasons, strict=True) if not reason]
            origins = [s.origins(split, m.context, m.horizon) for s, m in zip(asked, trained, strict=True)]
            found = iter(cpbmodels.predict(trained, asked, origins))
            return [MemberError(reason) if reason else next(found) for reason in reasons]

        return forecast

    def _trained(self, loaded: Sequence[FoldSeries]) -> list[cpbmodels.Member]:
        return self._universal(loaded) if self.name.endswith(UNIVERSAL) else self.per_series(loaded)

    def why_not(self, one: FoldSeries) -> str:
        """Return why a series cannot be learnt from or judged with this architecture, or ""."""
        architecture = self.name.removesuffix(UNIVERSAL)
        return cpbmodels.why_not(one.series, architecture, self.config.preset, **self.config.overrides)

    def per_series(self, loaded: Sequence[FoldSeries]) -> list[cpbmodels.Member]:
        """Return one member per coin and fold, trained as one fleet; `config.copies` each, averaged."""
        copies = [(one.series, seed) for one in loaded for seed in self._seeds(one)]
        trained = self._train([series for series, _ in copies], [seed for _, seed in copies], "per-series")
        return self._averaged(trained)

    def _universal(self, loaded: Sequence[FoldSeries]) -> list[cpbmodels.Member]:
        groups: dict[tuple[int, str], list[FoldSeries]] = defaultdict(list)
        for one in loaded:
            groups[one.fold, one.series.timeframe].append(one)
        trained = {
            key: self._averaged(self._train([o.series for o in group], self._seeds(group[0]), "universal"))[0]
            for key, group in groups.items()
        }
        return [trained[one.fold, one.series.timeframe] for one in loaded]

    def _averaged(self, trained: list[cpbmodels.Member]) -> list[cpbmodels.Member]:
        count = self.config.copies(self.name)
        groups = [trained[i : i + count] for i in range(0, len(trained), count)]
        return [group[0] if count == 1 else cpbmodels.ensemble(group) for group in groups]

    def _train(self, series: list[Series], seeds: list[int], scope: str) -> list[cpbmodels.Member]:
        return cpbmodels.train_fleet(
            series,
            architecture=self.name.removesuffix(UNIVERSAL),
            preset=self.config.preset,
            seeds=seeds,
            device=self.config.device,
            dtype=self.config.dtype,
            scope=scope,
            **self.config.overrides,
        )

    def _seeds(self, one: FoldSeries) -> list[int]:
        text = f"{self.config.seed}/{self.name}/{one.series.symbol}/{one.series.timeframe}/{one.fold}"
        return [zlib.crc32(text.encode()) + i for i in range(self.config.copies(self.name))]
