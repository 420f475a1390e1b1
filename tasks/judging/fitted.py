"""Fitted baselines: GARCH and the robust HAR.

GJR-GARCH(1,1) with Student-t errors (package `arch`, extra `judging`): the standard econometric volatility model, in
which a fall raises the variance more than a rise.

Parameters are estimated once on the training span; the variance is then filtered through every candle and its path
forecast in closed form: E[σ²(t+k)] = m + φᵏ⁻¹ (σ²(t+1) − m) with φ = α + γ/2 + β and the mean m = ω / (1 − φ). The
empirical quantiles of the standardised training moves give the shape per step.

Robust HAR as a baseline: a linear forecast of the future range, without a network. The strongest baseline.

It is the architecture `robust-har` (`cpbmodels/data/ranges.py` defines both), fitted in float64 on a coin's training
origins and used without a model folder.
"""

from dataclasses import dataclass

import numpy as np

from cpbmodels.arch.presets import preset
from cpbmodels.data.columns import segment_age
from cpbmodels.data.ranges import RangeModel, fit_ranges
from cpbmodels.data.series import Series
from tasks.judging.scores import Array, Rows, ScaledTable, import_extra


@dataclass(frozen=True)
class Garch:
    """ω, α, γ, β of the one-candle variance (in squared log-return). `gamma`: added to `alpha` after a fall."""

    omega: float
    alpha: float
    gamma: float
    beta: float

    def scale(self, series: Series, origins: Rows, horizon: int) -> Array:
        """Return the forecast standard deviation [N, H] of the cumulative log-return."""
        first = self._next_variance(series)[origins][:, None]
        mean = self._mean
        path = mean + self._persistence ** np.arange(horizon) * (first - mean)
        return np.sqrt(np.maximum(np.cumsum(path, axis=1), 1e-16))

    @property
    def _persistence(self) -> float:
        return self.alpha + self.gamma / 2 + self.beta

    @property
    def _mean(self) -> float:
        return self.omega / max(1 - self._persistence, 1e-6)

    def _next_variance(self, series: Series) -> Array:
        """Return, per row, the variance of the next candle; it starts from the mean in each segment."""
        returns = np.nan_to_num(series.columns(("r_close",))[:, 0])
        shocks = (self.alpha + self.gamma * (returns < 0)) * returns**2
        starts = segment_age(series.segments) == 0
        mean = self._mean
        out, variance = np.empty(len(shocks)), mean
        for row, (shock, start) in enumerate(zip(shocks.tolist(), starts.tolist(), strict=True)):
            variance = mean if start else self.omega + shock + self.beta * variance
            out[row] = variance
        return out


def garch(series: Series, origins: Rows, horizon: int) -> ScaledTable:
    """Fit parameters and table on the training origins; errors as in `garch_parameters`."""
    return ScaledTable.fit(garch_parameters(series, origins).scale, series, origins, horizon)


def garch_parameters(series: Series, origins: Rows) -> Garch:
    """Fit on the returns of the training origins' candles.

    Raises:
        CpbError: the extra `judging` is not installed.
    """
    arch_model = import_extra("arch").arch_model
    returns = (
        series.columns(("r_close",))[origins, 0] * 100
    )  # in per cent: the scale that the optimizer expects
    fit = arch_model(returns, mean="Zero", vol="GARCH", p=1, o=1, q=1, dist="t", rescale=False).fit(
        disp="off", show_warning=False
    )
    names = ("omega", "alpha[1]", "gamma[1]", "beta[1]")
    omega, alpha, gamma, beta = (float(fit.params[name]) for name in names)
    return Garch(omega / 1e4, alpha, gamma, beta)


def robust_har(series: Series, origins: Rows, horizon: int) -> RangeModel:
    """Fit a series on its training origins.

    Raises:
        ModelError: there is no training origin.
    """
    options = preset("default", "robust-har")
    return fit_ranges([(series, origins)], options.features, options.calendar, horizon, options.input_clip)
