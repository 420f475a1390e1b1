"""Quantiles of Student's t without SciPy: bracketed Newton on the incomplete beta function, float64 numpy."""

from functools import lru_cache
from math import lgamma

import numpy as np

QUANTILES = np.round(np.arange(1, 20) * 0.05, 2)
"""The 19 levels of every forecast: 0.05, 0.10 .. 0.95."""


def t_quantiles(df: np.ndarray, levels: np.ndarray = QUANTILES) -> np.ndarray:
    """Quantiles [..., L] of the standard t with `df` [...] degrees of freedom (> 0) at `levels` [L] in (0, 1)."""
    df = np.asarray(df, dtype=np.float64)
    out = np.empty((df.size, len(levels)))
    for row, nu in enumerate(df.ravel()):
        out[row] = [_quantile(float(level), float(nu)) for level in levels]
    return out.reshape(*df.shape, len(levels))


def _quantile(level: float, df: float) -> float:
    if level == 0.5:
        return 0.0
    upper = _upper_quantile(round(min(level, 1 - level), 12), df)
    return upper if level > 0.5 else -upper


@lru_cache(maxsize=100_000)
def _upper_quantile(tail: float, df: float) -> float:
    """x >= 0 with P(T > x) = tail: Newton steps, kept inside a shrinking bracket."""
    low, high = 0.0, 1.0
    while _upper_tail(high, df) > tail:
        low, high = high, high * 2
    x = (low + high) / 2
    for _ in range(200):
        error = _upper_tail(x, df) - tail
        low, high = (x, high) if error > 0 else (low, x)
        step = x + error / _density(x, df)
        previous, x = x, step if low < step < high else (low + high) / 2
        if abs(x - previous) <= 1e-15 * abs(x):
            break
    return x


def _density(x: float, df: float) -> float:
    log = lgamma((df + 1) / 2) - lgamma(df / 2) - 0.5 * np.log(df * np.pi)
    return float(np.exp(log - (df + 1) / 2 * np.log1p(x * x / df)))


def _upper_tail(x: float, df: float) -> float:
    """P(T > x) for x >= 0 = I_{df / (df + x^2)}(df / 2, 1 / 2) / 2."""
    y = x * x / (df + x * x)
    if y < 1.5 / (df / 2 + 2.5):  # the continued fraction of the complement converges fast here
        return 0.5 - 0.5 * _beta_fraction(0.5, df / 2, y)
    return 0.5 * _beta_fraction(df / 2, 0.5, df / (df + x * x))


def _beta_fraction(a: float, b: float, x: float) -> float:
    """Regularised incomplete beta I_x(a, b) by Lentz's continued fraction (Numerical Recipes, 6.4)."""
    if x <= 0:
        return 0.0
    front = np.exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * np.log(x) + b * np.log1p(-x)) if x < 1 else 0.0
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, 500):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / (1 + numerator * d)
            c = 1 + numerator / c
            value *= c * d
        if abs(c * d - 1) < 1e-16:
            break
    return float(front * value / a)
