"""Random-walk candles: the same work for every contender, no download, no secret in the data."""

from cpbmodels.arch.options import Preset
from cpbmodels.data.series import Series
from cpbmodels.fleet.one_step import walk as _walk


def walks(members: int, rows: int) -> list[Series]:
    """`members` series of `rows` candles each, seeded by their number; the last 15 % validate."""
    return [walk(rows, seed=k) for k in range(members)]


def walk(rows: int, seed: int) -> Series:
    """One series whose log close is a Gaussian random walk with a volatility of 1 % a candle."""
    return _walk(rows, seed, Preset())
