"""One trained model with its history and report: what it forecasts of a series, and how it is saved."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from cpbmodels.data import FEATURE_WARMUP
from cpbmodels.data.chances import Numbers, Pairs
from cpbmodels.data.series import Series
from cpbmodels.errors import ModelError
from cpbmodels.fleet.bank import ALL_SYMBOLS
from cpbmodels.fleet.config import CONFIG, WEIGHTS, check_fields, sealed, write_whole
from cpbmodels.fleet.forecast import Forecast, forecast_all, predict_rows
from cpbmodels.fleet.model import Model

if TYPE_CHECKING:
    import polars as pl


@dataclass(repr=False)  # a `Model` prints itself in one line
class Member(Model):
    """A trained model: a `Model` with the story of its training.

    history: a dict per epoch: epoch, train_loss, val_loss, lr.
    report: how the training went. Of the member: `diverged` (a loss was NaN or infinite before any epoch improved
        validation, so the weights are the initial weights: do not use it; after a later one it has the weights of
        `best_epoch`), `stopped` ("early_stop", "max_epochs", "nan", "on_request" or "closed_form") with `reason` as a
        sentence, `epochs_run`, `best_epoch` (from 1; 0: none improved), `best_val_loss`, `train_windows`,
        `validation_windows`; of classifiers `accuracy` and `confusion` on the validation windows (rows truth, columns
        forecast, each up, flat, down); of an ensemble `ensemble`, the number of averaged models (all else is the
        first's, but `diverged`, `accumulate`, `halved_to` and `split_to`). Of its fleet: `accumulate` (micro-batches
        per step), `split_to` (what `accumulate` became since memory ran out for one member, or 0), `fleet_members`,
        `halved_to` (most members together since memory ran out, or 0), `windows_per_s`, `train_seconds`, `trained_at`
        (when that ended, ISO in UTC), `device`, `compute_dtype` (of the products), `kernels` (`on`, or `off` with the
        reason), `device_warning` ("" or a sentence) and the figures of `Monitor.summary`.
    """

    history: list[dict[str, Any]] = field(default_factory=list)
    report: dict[str, Any] = field(default_factory=dict)
    parts: tuple[Member, ...] = field(default=(), kw_only=True)

    def forecast(self, series: Series, *, go_back: bool = False) -> Forecast:
        """The forecast after the series' last candle.

        Args:
            go_back: if that is impossible, forecast after the last candle from which it is possible
                (`Forecast.issued_at`).

        Raises:
            ModelError: the series has a different timeframe or, if the model learned one series, a different symbol;
                the forecast is not finite; or a gap or jump lies so near its end that the columns of
                the last candle are not known yet.
        """
        check_series(self, series)
        forecast = forecast_all([self], [series])[0]
        if not go_back and forecast.issued_row != len(series) - 1:
            age = int((series.segments == series.segments[-1]).sum())
            more = max(FEATURE_WARMUP + self.context - age, 1)
            raise ModelError(
                f"{series.label}: no forecast after its last candle: a gap or jump {age} candles before its end leaves "
                f"columns that are not known yet; {more} more candles without a gap or jump are needed."
            )
        return forecast

    def predict(
        self,
        series: Series,
        since: datetime | str | None = None,
        *,
        touch: Numbers = (),
        stop: Numbers = (),
        first: Pairs = (),
        above: Numbers = (),
    ) -> pl.DataFrame:
        """The forecasts from every origin, as rows of `Forecast.to_frame`; for backtests.

        Args:
            since: the first origin's time (UTC close of the last candle used), as an aware datetime or a text;
                None: from the first candle with a whole context on. `known_until` is a good choice.
            touch, stop, first, above: as in `Forecast.to_frame`; the chances of a pair are NaN after a close that does
                not lie between its prices.
        """
        check_series(self, series)
        return predict_rows(self, series, since, touch=touch, stop=stop, first=first, above=above)

    def save(self, folder: str | Path, extra: Mapping[str, Any] | None = None) -> Path:
        """Write model.safetensors and config.json (plus `extra`: training span, digest, metrics), each as a whole.

        Raises:
            ModelError: `extra` has a field that `cpbmodels.fleet.config.FIELDS` does not know, or an impossible value.
        """
        from safetensors.torch import save as to_bytes

        folder, weights = Path(folder), to_bytes(self.tensors())
        values = {**self.config, **(extra or {}), "history": self.history, "report": self.report}
        config = sealed(values, hashlib.sha256(weights).hexdigest())
        check_fields(config, folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / WEIGHTS, weights)
        write_whole(folder / CONFIG, json.dumps(config, indent=2).encode())
        return folder

    def tensors(self) -> dict[str, Tensor]:
        """Return the weights and scalings by their names in `model.safetensors`."""
        table = self.extremes.tensors() if self.extremes else {}
        extremes = {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in table.items()}
        if self.parts:
            return extremes | {
                f"{place}.{name}": tensor
                for place, part in enumerate(self.parts)
                for name, tensor in part.tensors().items()
            }
        views = self.net().layout.views(self.rows)
        named = {f"weights.{name}": view.contiguous() for name, view in views.items()}
        return (
            named
            | extremes
            | {"input.mean": self.mean, "input.inverse": self.inverse, "head.table": self.table}
        )


def doubled(member: Member) -> Member:
    """The member in float64: its forecasts then do not depend on how many rows are computed together."""
    if member.config["dtype"] == "float64":
        return member
    config = {**member.config, "dtype": "float64"}
    if member.parts:
        return replace(member, config=config, parts=tuple(doubled(part) for part in member.parts))
    # Of the parts as well, above: an average has no rows of its own.
    tensors = {name: getattr(member, name).double() for name in ("rows", "mean", "inverse", "table")}
    return replace(member, config=config, **tensors)


def check_series(member: Member, series: Series) -> None:
    """Raise ModelError if `series` is not a Series, or a series that the model cannot forecast."""
    if not isinstance(series, Series):
        raise ModelError(
            f"A {type(series).__name__} is not a Series of candles: make one with Series.from_frame."
        )
    trained = member.config.get("timeframe")
    if trained and series.timeframe and trained != series.timeframe:
        raise ModelError(
            f"{series.label}: the model was trained on {trained} candles and these are {series.timeframe}: give it "
            f"{trained} candles."
        )
    if why := other_symbol(member, series.symbol):
        raise ModelError(f"{series.label}: {why}")


def other_symbol(member: Member, symbol: str) -> str:
    """A sentence if the model learned only a series with a different symbol; "" if it serves this one.

    A universal model serves any symbol, and a series without a name is any model's. `BTC/USDT:USDT` is `BTCUSDT`.
    """
    name, learned = member.config.get("symbol", ""), member.config.get("symbols") or []
    # Series of a market of their own, as cpb's simulated candles, have its name before the symbol's in `symbols`.
    if (
        name in ("", ALL_SYMBOLS)
        or len(learned) > 1
        or _bare_symbol(symbol) in {"", *map(_bare_symbol, [name, *learned])}
    ):
        return ""
    return f"the model learned {name} alone: give it {name} candles, or use a universal model, which accepts all."


def _bare_symbol(symbol: str) -> str:
    """Letters and digits of a symbol, without the settlement currency that some libraries append after a colon."""
    return "".join(filter(str.isalnum, symbol.partition(":")[0])).upper()
