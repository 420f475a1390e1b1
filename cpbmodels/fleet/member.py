"""One trained model with its history and report; saving, loading and averaging."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cpbmodels.arch import architectures, find
from cpbmodels.arch.line import AVERAGE
from cpbmodels.arch.options import PER_MEMBER, Preset
from cpbmodels.arch.presets import check_together
from cpbmodels.data import FEATURE_WARMUP
from cpbmodels.data.series import Series
from cpbmodels.data.student_t import QUANTILES
from cpbmodels.data.touch import KEY, Numbers
from cpbmodels.errors import ModelError, printable, shown
from cpbmodels.files import read_regular
from cpbmodels.fleet.bank import ALL_SYMBOLS
from cpbmodels.fleet.config import (
    CONFIG,
    DIGEST,
    MAX_BYTES,
    OPTIONS,
    PART_FIELDS,
    PARTS,
    WEIGHTS,
    WEIGHTS_DIGEST,
    check_fields,
    check_whole,
    damaged,
    options_of,
    parse,
    part_configs,
    sealed,
    tensor_fault,
    touch_fault,
    write_whole,
)
from cpbmodels.fleet.net import DTYPES, Net
from cpbmodels.fleet.predict import Forecast, forecast_all, predict_rows

if TYPE_CHECKING:
    import polars as pl

MAX_ROWS = 1_000  # models in an ensemble
_COSTS = (
    "train_seconds",
    "trained_at",
    "rss_peak_mb",
    "gpu_mem_allocated_peak_mb",
    "gpu_mem_reserved_peak_mb",
)


@dataclass
class Member:
    """A trained model: E rows of P weights, one, or several whose quantiles are averaged (an ensemble).

    config: what config.json holds: architecture, symbol, timeframe, seed, every option, versions.
    rows: [E, P], with the layout of `net().layout`.
    mean, inverse: [E, columns], the scaling of the inputs.
    table: [E, H, 19], quantiles of the standardised error (`heads`).
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
    parts: of an average, the models whose quantiles it averages; its own rows and tables are empty then.
    touch: float32 [2, H, 99], how far prices went, in widths of its forecasts (`cpbmodels.data.touch`); None of a
        classifier, and of a part of an average.
    """

    config: dict[str, Any]
    rows: Tensor
    mean: Tensor
    inverse: Tensor
    table: Tensor
    history: list[dict[str, Any]] = field(default_factory=list)
    report: dict[str, Any] = field(default_factory=dict)
    parts: tuple[Member, ...] = field(default=(), kw_only=True)
    touch: Tensor | None = field(default=None, kw_only=True)

    @property
    def context(self) -> int:
        """Candles the model reads."""
        return int(self.config["context"])

    @property
    def horizon(self) -> int:
        """Candles the model forecasts."""
        return int(self.config["horizon"])

    @property
    def options(self) -> Preset:
        """The preset it was trained with."""
        return options_of(self.config)

    @property
    def dtype(self) -> torch.dtype:
        """float32 or float64."""
        return DTYPES[self.config["dtype"]]

    @property
    def stacking_key(self) -> str:
        """Equal for models of the same architecture, layout and number of rows: they can forecast as one fleet.

        Options in which rows of a fleet may differ do not count, but whether a decoder learned by teacher forcing does:
        it reads its own candles then.
        """
        names = ("architecture", "dtype", *(name for name in OPTIONS if name not in PER_MEMBER))
        forced = bool(self.config.get("teacher_forcing"))
        return json.dumps([len(self.rows), forced, *(self.config.get(name) for name in names)], default=list)

    def net(self, device: torch.device | None = None) -> Net:
        """Its architecture and head."""
        return Net(self.config["architecture"], self.options, device or torch.device("cpu"), self.dtype)

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
        self, series: Series, since: datetime | str | None = None, *, touch: Numbers = (), stop: Numbers = ()
    ) -> pl.DataFrame:
        """The forecasts from every origin, as rows of `Forecast.to_frame`; for backtests.

        Args:
            since: the first origin's time (UTC close of the last candle used), as an aware datetime or a text;
                None: from the first candle with a whole context on. `known_until` is a good choice.
            touch, stop: as in `Forecast.to_frame`.
        """
        check_series(self, series)
        return predict_rows(self, series, since, touch, stop)

    @property
    def known_until(self) -> datetime | None:
        """The end (UTC) of all its spans, the test span included, which it was chosen on; None if unknown.

        Forecasts from earlier origins do not test the model.
        """
        text = self.config.get("known_until")
        return datetime.fromisoformat(text) if text else None

    def __repr__(self) -> str:
        """One line: architecture, series, seed, and where its training data ends."""
        config, until = self.config, self.known_until
        seeds = config.get("seeds", config.get("seed"))
        end = f", knows candles until {until:%Y-%m-%d}" if until else ""
        name = f"{config.get('symbol') or '-'} {config.get('timeframe') or ''}".strip()
        return printable(f"<Member {config['architecture']}, {name}, seed {seeds}{end}>", keep="")

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
        touch = {} if self.touch is None else {KEY: self.touch}
        if self.parts:
            return touch | {
                f"{place}.{name}": tensor
                for place, part in enumerate(self.parts)
                for name, tensor in part.tensors().items()
            }
        views = self.net().layout.views(self.rows)
        named = {f"weights.{name}": view.contiguous() for name, view in views.items()}
        return (
            named | touch | {"input.mean": self.mean, "input.inverse": self.inverse, "head.table": self.table}
        )


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


def load(folder: str | Path) -> Member:
    """A member from its folder. Reads no pickle and runs no code from it.

    `config.json` is checked before anything is allocated (`cpbmodels.fleet.config`), then the sha256 of both files,
    then the names, shapes and dtypes of the weights, and whether all are finite.

    Raises:
        ModelError: what is wrong and where, in one sentence.
    """
    folder = Path(folder)
    if folder.is_file():
        raise ModelError(f"{folder} is a file: give the folder that holds it, {folder.parent}.")
    try:
        config = parse(read_regular(folder / CONFIG, MAX_BYTES), folder)
        check_whole(config, folder)
        weights = read_regular(folder / WEIGHTS)
    except OSError as error:
        text = f"{error.filename or folder} cannot be read ({error.strerror}): a model is {CONFIG} and {WEIGHTS}."
        raise ModelError(text) from None
    return member_of(config, weights, folder)


def member_of(config: Mapping[str, Any], weights: bytes, folder: str | Path) -> Member:
    """A member from the contents of its files, checked as by `load`, for whoever has read them already.

    Args:
        config: the fields of `config.json`, from `cpbmodels.fleet.config.parse`.
        weights: the bytes of `model.safetensors`.
        folder: where both were read, for messages.

    Raises:
        ModelError: as `load`.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load as from_bytes

    folder, config = Path(folder), dict(config)
    options = check_whole(config, folder)
    # Both digests are those of the files: a member saved from this member has its own.
    if config.pop(WEIGHTS_DIGEST) != hashlib.sha256(weights).hexdigest():
        raise damaged(folder, "the sha256 of model.safetensors differs from config.json")
    del config[DIGEST]
    try:
        tensors = from_bytes(weights)
    except SafetensorError as error:
        raise damaged(folder, str(error)) from None
    configs, parts, touch = part_configs(config), [], tensors.pop(KEY, None)
    if touch is not None and touch.dtype != torch.float32:  # numpy lacks some of torch's
        raise _differ(folder, KEY)
    if touch is not None and (fault := touch_fault(touch.numpy(), options.horizon)):
        raise damaged(folder, f"{KEY} {fault}")
    for place, part in enumerate(configs):
        prefix = f"{place}." if len(configs) > 1 else ""
        names = [name for name in tensors if name.startswith(prefix)]
        parts.append(_member(part, {name.removeprefix(prefix): tensors.pop(name) for name in names}, folder))
    if tensors:
        raise _differ(folder, min(tensors))
    if len(parts) == 1:
        return replace(parts[0], touch=touch)
    history, report = config.pop("history", []), config.pop("report", {})
    return replace(average(parts, options), config=config, history=history, report=report, touch=touch)


def _member(config: dict[str, Any], tensors: dict[str, Tensor], folder: Path) -> Member:
    """A member that is no average from its checked config and its tensors; ModelError if these do not fit."""
    architecture, options = config["architecture"], options_of(config)
    if architecture not in architectures():
        raise ModelError(
            f"{folder} is a model of the architecture {shown(architecture)}, which this cpbmodels does not have: use "
            "the version that trained it."
        )
    try:
        check_together(architecture, options)
    except ModelError as error:
        raise ModelError(f"{folder}: config.json is invalid: {error}") from None
    net = Net(architecture, options, torch.device("cpu"), DTYPES[config["dtype"]])
    shapes = {f"weights.{param.name}": param.shape for param in net.layout.params}
    shapes |= dict.fromkeys(("input.mean", "input.inverse"), (len(net.columns),))
    shapes["head.table"] = (net.head.steps, len(QUANTILES))
    if not tensors.keys() <= shapes.keys():
        raise _differ(folder, min(tensors.keys() - shapes.keys()))
    count = tensors["head.table"].shape[:1].numel() if "head.table" in tensors else 0
    for name, shape in shapes.items():
        tensor = tensors.get(name)
        if (
            tensor is None
            or tensor.dtype != net.unit.dtype
            or tensor.shape != (count, *shape)
            or not 1 <= count <= MAX_ROWS
        ):
            raise _differ(folder, name)
        if fault := tensor_fault(name, tensor.numpy()):
            raise damaged(folder, f"{name} {fault}")
    history, report = config.pop("history", []), config.pop("report", {})
    rows = tensors["head.table"].new_zeros(count, net.layout.size)
    for name, view in net.layout.views(rows).items():
        view.copy_(tensors[f"weights.{name}"])
    mean, inverse, table = (tensors[name] for name in ("input.mean", "input.inverse", "head.table"))
    return Member(config, rows, mean, inverse, table, history, report)


def _differ(folder: Path, name: str) -> ModelError:
    return ModelError(
        f"{folder}: {shown(name)} is not as config.json describes this model's weights: config and weights differ."
    )


def average(parts: Sequence[Member], options: Preset) -> Member:
    """One model of trained members.

    Its history, and its report apart from `diverged`, `halved_to`, `split_to` and what the training of all cost, are
    the first member's.
    """
    first, nothing = parts[0], torch.empty(0)
    shared = {name: value for name, value in first.config.items() if name not in OPTIONS}
    described = [
        {name: part.config[name] for name in (*PART_FIELDS, *OPTIONS) if name in part.config}
        for part in parts
    ]
    return Member(
        config={**shared, "architecture": AVERAGE, **options.as_dict(), PARTS: described},
        rows=nothing,
        mean=nothing,
        inverse=nothing,
        table=nothing,
        parts=tuple(parts),
        history=first.history,
        report={
            **first.report,
            **_shortage(parts),
            **_cost(parts),
            "diverged": any(part.report.get("diverged", False) for part in parts),
        },
    )


def ensemble(members: list[Member]) -> Member:
    """One model of several trained with equal options and other seeds: their quantiles and candles are averaged.

    Its history, and its report apart from `diverged`, `accumulate`, `halved_to`, `split_to` and `ensemble`, are the
    first member's.
    """
    if not members:
        raise ModelError("An ensemble needs at least one member.")
    if members[0].parts:
        # Copy by copy; a closed form's copies are equal, so the first stands for all.
        copies = [list(same) for same in zip(*(member.parts for member in members), strict=True)]
        solved = [find(same[0].config["architecture"]).spec.closed_form for same in copies]
        parts = [same[0] if alone else ensemble(same) for same, alone in zip(copies, solved, strict=True)]
        return replace(average(parts, members[0].options), touch=_mean_touch(members))
    # `accumulate` may have grown for want of memory between one member and the next; it changes no result.
    first, ignored = members[0], {"seed", "seeds", "accumulate"}
    for other in members[1:]:
        differing = [k for k in first.config if k not in ignored and other.config.get(k) != first.config[k]]
        if differing:
            raise ModelError(f"An ensemble needs equal options, these differ: {', '.join(differing)}.")
    seeds = [seed for member in members for seed in member.config.get("seeds", [member.config["seed"]])]
    return Member(
        config={**first.config, "seeds": seeds},
        rows=torch.cat([member.rows for member in members]),
        mean=torch.cat([member.mean for member in members]),
        inverse=torch.cat([member.inverse for member in members]),
        table=torch.cat([member.table for member in members]),
        history=first.history,
        report={
            **first.report,
            "ensemble": len(seeds),
            "accumulate": max(member.report.get("accumulate", 1) for member in members),
            **_shortage(members),
            "diverged": any(member.report.get("diverged", False) for member in members),
        },
        touch=_mean_touch(members),
    )


def _cost(parts: Sequence[Member]) -> dict[str, Any]:
    """What the parts of an average cost that were trained one after the other, as far as their reports have it.

    Their seconds together, the end of the last, the peaks of memory over all, and the throughput of those that were
    trained by gradient steps.
    """
    reports = [part.report for part in parts]
    known = {name: [report[name] for report in reports if name in report] for name in _COSTS}
    cost = {name: sum(of) if name == "train_seconds" else max(of) for name, of in known.items() if of}
    stepped = [
        report for report in reports if report.get("stopped") != "closed_form" and "windows_per_s" in report
    ]
    if seconds := sum(report["train_seconds"] for report in stepped):
        windows = sum(report["windows_per_s"] * report["train_seconds"] for report in stepped)
        cost["windows_per_s"] = windows / seconds
    return cost


def _shortage(members: Sequence[Member]) -> dict[str, int]:
    """What the lack of memory did to any of them: the fewest together, the most parts of a batch; 0 if nothing."""
    halved = [at_once for member in members if (at_once := member.report.get("halved_to", 0))]
    return {
        "halved_to": min(halved, default=0),
        "split_to": max(member.report.get("split_to", 0) for member in members),
    }


def _mean_touch(members: Sequence[Member]) -> Tensor | None:
    """The mean of the members' tables: their forecasts are about as wide as the mean forecast is."""
    tables = [member.touch for member in members if member.touch is not None]
    return torch.stack(tables).mean(0) if len(tables) == len(members) else None
