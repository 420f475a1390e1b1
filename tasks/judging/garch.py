"""GARCH(1,1) with Student-t errors (package `arch`, extra `judging`): the standard econometric volatility model.

Parameters are estimated once on the training span; the variance is then filtered through every candle and its path
forecast in closed form: E[σ²(t+k)] = m + (α + β)ᵏ⁻¹ (σ²(t+1) − m) with the mean m = ω / (1 − α − β). The quantiles of
the standardised training moves give the shape per step.
"""

from dataclasses import dataclass

import numpy as np

from cpbmodels.series import Series
from tasks.judging.baselines import Rows, import_extra, levels, realised
from tasks.judging.scores import Array


@dataclass(frozen=True)
class Garch:
    """ω, α, β of one-candle variance (in squared log-return), and the quantiles of the standardised training moves.

    `table`: those quantiles [H, 19].
    """

    omega: float
    alpha: float
    beta: float
    table: Array

    def scale(self, series: Series, origins: Rows, horizon: int) -> Array:
        """Return the forecast standard deviation [N, H] of the cumulative log-return."""
        first = self._next_variance(series)[origins][:, None]
        persistence = self.alpha + self.beta
        mean = self.omega / max(1 - persistence, 1e-6)
        path = mean + persistence ** np.arange(horizon) * (first - mean)
        return np.sqrt(np.maximum(np.cumsum(path, axis=1), 1e-16))

    def quantiles(self, series: Series, origins: Rows) -> Array:
        """Return [N, H, 19]."""
        return self.scale(series, origins, len(self.table))[..., None] * self.table

    def _next_variance(self, series: Series) -> Array:
        """Return, per row, the variance of the next candle; it starts from the mean in each segment."""
        squared = np.nan_to_num(series.columns(("r_close",))[:, 0]) ** 2
        starts = np.r_[True, np.diff(series.segments) != 0]
        mean = self.omega / max(1 - self.alpha - self.beta, 1e-6)
        out, variance = np.empty(len(squared)), mean
        for row, (square, start) in enumerate(zip(squared.tolist(), starts.tolist(), strict=True)):
            variance = mean if start else self.omega + self.alpha * square + self.beta * variance
            out[row] = variance
        return out


def garch(series: Series, origins: Rows, horizon: int) -> Garch:
    """Fit on the returns of the training origins' candles.

    Raises:
        CpbError: the extra `judging` is not installed.
    """
    arch_model = import_extra("arch").arch_model
    returns = (
        series.columns(("r_close",))[origins, 0] * 100
    )  # in per cent, the scale that the optimizer expects
    fit = arch_model(returns, mean="Zero", vol="GARCH", p=1, q=1, dist="t", rescale=False).fit(
        disp="off", show_warning=False
    )
    omega, alpha, beta = (float(fit.params[name]) for name in ("omega", "alpha[1]", "beta[1]"))
    unshaped = Garch(omega / 1e4, alpha, beta, np.ones((horizon, 1)))
    moves = realised(series, origins, horizon) / unshaped.scale(series, origins, horizon)
    return Garch(unshaped.omega, alpha, beta, levels(moves))
