"""Models for other languages: one ONNX file, columns in and quantiles out, and a JSON that defines the columns."""

from __future__ import annotations

import json
import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cpbmodels.arch import find, usable
from cpbmodels.data.columns import SEGMENT, SIGMA, definition
from cpbmodels.data.series import Series
from cpbmodels.data.student_t import QUANTILES
from cpbmodels.errors import ModelError, pip_install
from cpbmodels.fleet.bank import Scaling
from cpbmodels.fleet.checkpoint import write_whole
from cpbmodels.fleet.member import Member

FORMAT = 1
_OPSET = 18


class _Exported(torch.nn.Module):
    """A model as torch's exporter wants it: tensors in, tensors out, the batch in front, no member axis."""

    rows: Tensor
    mean: Tensor
    inverse: Tensor
    table: Tensor
    root: Tensor

    def __init__(self, model: Member) -> None:
        super().__init__()
        self.net, self.options = model.net(), model.options
        for name in ("rows", "mean", "inverse", "table"):
            self.register_buffer(name, getattr(model, name).clone())
        self.register_buffer("root", torch.arange(1, model.horizon + 1).sqrt().to(model.dtype)[:, None])

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns that come in: the model's inputs, then the hour of the week if it reads one."""
        return self.net.columns[self.net.span[0] :]

    def forward(self, columns: Tensor, volatility: Tensor) -> tuple[Tensor, Tensor]:
        """columns [N, C, F], volatility [N] -> quantiles [N, H, 19], candle [N, H, 4], in log-return."""
        # Returns that only training's targets need are not requested; the net's rows start with them.
        unused = columns.new_zeros(()).expand(*columns.shape[:2], self.net.span[0])
        rows = torch.cat([unused, columns], -1).unsqueeze(0).expand(len(self.rows), -1, -1, -1)
        sigma = volatility.unsqueeze(0).expand(len(self.rows), -1)
        window = self.net.window(rows, 1 / sigma, Scaling(self.mean, self.inverse), future=False)
        raw = self.net.raw(window, self.net.layout.views(self.rows), None)
        unit = volatility[:, None, None] * self.root
        quantiles, candle = (one.mean(0) * unit for one in self.net.head.forecast(raw, self.table))
        return quantiles, candle


class _Mean(torch.nn.Module):
    """An average as torch's exporter wants it: each member reads its columns of those of all."""

    def __init__(self, model: Member) -> None:
        super().__init__()
        self.parts = torch.nn.ModuleList(_Exported(one) for one in model.parts)
        every = [one.names for one in self.each]
        self.names = tuple(dict.fromkeys(name for names in every for name in names))
        self.places = [[self.names.index(name) for name in names] for names in every]

    @property
    def each(self) -> list[_Exported]:
        """The members."""
        return [one for one in self.parts if isinstance(one, _Exported)]

    def forward(self, columns: Tensor, volatility: Tensor) -> tuple[Tensor, Tensor]:
        """As `_Exported.forward`; the mean over the members."""
        found = [
            one(columns[:, -one.options.context :, places], volatility)
            for one, places in zip(self.each, self.places, strict=True)
        ]
        quantiles, candle = (torch.stack(part).mean(0) for part in zip(*found, strict=True))
        return quantiles, candle


def exportable() -> list[str]:
    """Names of the architectures that can be exported; an average can if all of its members can."""
    return [name for name, found in usable().items() if found.spec.exportable]


def export_onnx(model: Member, folder: str | Path, series: Series | None = None) -> list[Path]:
    """Write `model.onnx` and `model.json`, each as a whole, and return their paths.

    Inputs: `columns` float [N, context, F] and `volatility` float [N] at each window's last candle. Outputs:
    `quantiles` [N, H, 19] and `candle` [N, H, 4], the cumulative log-return of the close at 0.05 … 0.95 and the log
    ratios of the median open, high, low and close to the last close; prices are last close x exp(output). The JSON
    names and defines the columns in order; with a `series` it holds an example to check another implementation by.

    Raises:
        ModelError: the architecture cannot be exported, the exporter is not installed, or its result differs from
            this library's by more than 1e-5.
    """
    for name in [one.config["architecture"] for one in model.parts or (model,)]:
        if not find(name).spec.exportable:
            raise ModelError(
                f"{name} cannot be exported to ONNX: choose a model of {', '.join(exportable())}."
            )
    exported = (_Mean(model) if model.parts else _Exported(model)).eval()
    data = _program(exported, model)
    example = _example(exported, model, series)
    _check(data, example)
    description = _description(exported, model) | (
        {"example": {name: values.tolist() for name, values in example.items()}} if example else {}
    )
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / "model.onnx", folder / "model.json"]
    write_whole(paths[0], data)
    write_whole(paths[1], json.dumps(description, indent=2).encode())
    return paths


def _program(exported: _Exported | _Mean, model: Member) -> bytes:
    columns = torch.zeros(2, model.context, len(exported.names), dtype=model.dtype)
    inputs = (columns, torch.ones(2, dtype=model.dtype))
    batch = torch.export.Dim("N", min=1)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the exporter's own deprecations
            program = torch.onnx.export(
                exported,
                inputs,
                dynamo=True,
                verbose=False,
                opset_version=_OPSET,
                input_names=["columns", "volatility"],
                output_names=["quantiles", "candle"],
                dynamic_shapes={"columns": {0: batch}, "volatility": {0: batch}},
            )
    except ImportError as missing:
        raise ModelError(
            f"Exporting needs onnx and onnxscript ({missing.name} is missing): "
            f"{pip_install('onnx', 'onnxscript', 'onnxruntime')}."
        ) from None
    assert program is not None
    data: bytes = program.model_proto.SerializeToString()
    return data


def _example(exported: _Exported | _Mean, model: Member, series: Series | None) -> dict[str, np.ndarray]:
    """The newest windows (at most three) of a series as the file reads them, and this library's forecasts of them."""
    if series is None:
        return {}
    origins = np.flatnonzero(series.usable(model.context))[-3:]
    rows = series.columns(exported.names)
    windows = np.stack([rows[row - model.context + 1 : row + 1] for row in origins])
    kind = str(model.dtype).removeprefix("torch.")
    columns, volatility = windows.astype(kind), series.volatility[origins].astype(kind)
    with torch.no_grad():
        quantiles, candle = exported(torch.from_numpy(columns), torch.from_numpy(volatility))
    return {
        "columns": columns,
        "volatility": volatility,
        "quantiles": quantiles.numpy(),
        "candle": candle.numpy(),
    }


def _check(data: bytes, example: dict[str, np.ndarray]) -> None:
    """Run the file on the example; it must give what this library gives."""
    if not example:
        return
    try:
        import onnxruntime
    except ImportError:
        raise ModelError(
            f"The exported file is checked with onnxruntime: {pip_install('onnxruntime')}."
        ) from None
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    found = session.run(["quantiles", "candle"], {k: example[k] for k in ("columns", "volatility")})
    for name, one in zip(("quantiles", "candle"), found, strict=True):
        worst = float(np.abs(one - example[name]).max())
        if not worst <= 1e-5:
            raise ModelError(
                f"The exported file's {name} differ by {worst:.1e} from the model's: do not use it."
            )


def _description(exported: _Exported | _Mean, model: Member) -> dict[str, Any]:
    config = model.config
    about = ("architecture", "market", "symbol", "timeframe", "scope", "known_until", "training_span")
    return {
        "format": FORMAT,
        **{name: config[name] for name in about if config.get(name) is not None},
        "inputs": {
            "columns": {
                "shape": ["N", model.context, len(exported.names)],
                "dtype": config["dtype"],
                "order": "candles oldest first, columns as listed; scaling and clipping are done inside",
                "columns": [{"name": name, "definition": definition(name)} for name in exported.names],
            },
            "volatility": {"shape": ["N"], "dtype": config["dtype"], "definition": f"sigma_t: {SIGMA}"},
        },
        "outputs": {
            "quantiles": {
                "shape": ["N", model.horizon, len(QUANTILES)],
                "levels": QUANTILES.tolist(),
                "definition": "ln(close_{t+h} / close_t) at each level; the price is close_t x exp of it",
            },
            "candle": {
                "shape": ["N", model.horizon, 4],
                "definition": "ln(x_{t+h} / close_t) of the median open, high, low and close",
            },
        },
        "segment": SEGMENT,
    }
