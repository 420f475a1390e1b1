"""cpbmodels: train fleets of candle models together, and forecast with them. Torch, numpy, safetensors, polars.

    from cpbmodels import Series, load, train_fleet
    series = Series.from_frame(candles, symbol="BTCUSDT")
    members = train_fleet([series], architecture="har", preset="smoke", seeds=[1])
    members[0].forecast(series).to_frame()

Names load on first use: `import cpbmodels`, `Series`, `Preset` and `architectures()` do not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what follows at run time by name, spelled out for type checkers and completion
    from cpbmodels.arch import ArchitectureInfo, architecture, architectures
    from cpbmodels.arch.options import PROFILES, Preset
    from cpbmodels.arch.presets import preset, without_effect
    from cpbmodels.data.paths import Paths
    from cpbmodels.data.prediction import Prediction
    from cpbmodels.data.series import Series
    from cpbmodels.data.student_t import QUANTILES
    from cpbmodels.errors import ModelError
    from cpbmodels.fleet.average import ensemble
    from cpbmodels.fleet.forecast import Forecast, forecast_all, paths
    from cpbmodels.fleet.load import load
    from cpbmodels.fleet.member import Member
    from cpbmodels.fleet.predict import predict
    from cpbmodels.fleet.records import EpochRecord, StepRecord
    from cpbmodels.fleet.train import ineligible_reason, train_fleet
    from cpbmodels.hub import from_hub

__version__ = "0.2.0"

_EXPORTS = {
    "hub": ("from_hub",),
    "arch": ("ArchitectureInfo", "architecture", "architectures"),
    "arch.options": ("PROFILES", "Preset"),
    "arch.presets": ("preset", "without_effect"),
    "data.paths": ("Paths",),
    "data.prediction": ("Prediction",),
    "data.series": ("Series",),
    "data.student_t": ("QUANTILES",),
    "errors": ("ModelError",),
    "fleet.average": ("ensemble",),
    "fleet.forecast": ("Forecast", "forecast_all", "paths"),
    "fleet.load": ("load",),
    "fleet.member": ("Member",),
    "fleet.predict": ("predict",),
    "fleet.records": ("EpochRecord", "StepRecord"),
    "fleet.train": ("train_fleet", "ineligible_reason"),
}
_MODULE_OF = {name: module for module, names in _EXPORTS.items() for name in names}
__all__ = [
    "PROFILES",
    "QUANTILES",
    "ArchitectureInfo",
    "EpochRecord",
    "Forecast",
    "Member",
    "ModelError",
    "Paths",
    "Prediction",
    "Preset",
    "Series",
    "StepRecord",
    "architecture",
    "architectures",
    "ensemble",
    "forecast_all",
    "from_hub",
    "ineligible_reason",
    "load",
    "paths",
    "predict",
    "preset",
    "train_fleet",
    "without_effect",
]


def __dir__() -> list[str]:
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'cpbmodels' has no attribute {name!r}")
    value = getattr(import_module(f"cpbmodels.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value
