"""Robust HAR as a baseline: a linear forecast of the coming range, without a network. The strongest baseline.

It is the architecture `robust-har` (`cpbmodels/ranges.py` defines both), fitted in float64 on the training origins of a
coin and used without a model folder.
"""

from cpbmodels.presets import preset
from cpbmodels.ranges import RangeModel, fit_ranges
from cpbmodels.series import Series
from tasks.judging.baselines import Rows

_OPTIONS = preset("default", "robust-har")
HOUR = _OPTIONS.calendar
INPUTS = _OPTIONS.features


def robust_har(series: Series, origins: Rows, horizon: int) -> RangeModel:
    """Fit one series on its training origins.

    Raises:
        ModelError: no training origin.
    """
    return universal_har([series], [origins], horizon)


def universal_har(series: list[Series], origins: list[Rows], horizon: int) -> RangeModel:
    """Fit one model on the training origins of several series; it forecasts any series, also unseen ones.

    Raises:
        ModelError: no training origin at all.
    """
    return fit_ranges(list(zip(series, origins, strict=True)), INPUTS, HOUR, horizon, _OPTIONS.input_clip)
