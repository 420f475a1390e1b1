"""cpbmodels: train fleets of candle models, all at once. Torch, numpy and (to save or load) safetensors only.

    from cpbmodels import Series, load, train_fleet
    members = train_fleet([Series.from_ohlc(btc)], architecture="gru", preset="smoke", seeds=[1])
    members[0].forecast(series).close[0.5]

Names load on first use: `import cpbmodels`, `Series`, `Preset` and `architectures()` do not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_MODULE_OF = {
    "Series": "series",
    "ModelError": "errors",
    "QUANTILES": "student_t",
    "PRESETS": "presets",
    "PROFILES": "options",
    "Preset": "options",
    "preset": "presets",
    "architectures": "arch",
    "architecture": "arch",
    "ArchitectureInfo": "arch",
    "without_effect": "unused",
    "Member": "member",
    "Forecast": "prediction",
    "load": "member",
    "ensemble": "member",
    "Prediction": "prediction",
    "predict": "prediction",
    "forecast_all": "prediction",
    "train_fleet": "training",
    "why_not": "plan",
    "EpochRecord": "job",
}
__all__ = list(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'cpbmodels' has no attribute {name!r}")
    value = getattr(import_module(f"cpbmodels.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value
