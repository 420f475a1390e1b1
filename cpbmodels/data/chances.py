"""What a forecast says of prices: the chance that one is touched, reached before another, or closed above; stops.

Chances of highs and lows come from the model's table of extremes (`cpbmodels.data.extremes`), those of closes from the
forecast's own quantiles.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from cpbmodels.data.extremes import SIDES, TINY, Extremes, width
from cpbmodels.data.student_t import QUANTILES
from cpbmodels.errors import ModelError, PriceError, grouped, shown

MAX_STOP = 300
"""Largest log-return of a stop: beyond it a price, times or divided by e^300, is near the ends of float64 (e^709)."""
MIN_CHANCE = 1e-8
"""Least chance of a close beyond a price, as of a touch."""

Numbers = float | Sequence[float] | np.ndarray
Pairs = tuple[float, float] | Sequence[tuple[float, float]] | np.ndarray
Direction = Literal["long", "short"]


def numbers(given: Numbers | Pairs) -> np.ndarray:
    """float64 of a number, or of several; of texts too. PriceError for anything else."""
    try:
        return np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise PriceError(f"{shown(given)} is neither a number nor a list of numbers.") from None


def pairs(given: Pairs) -> np.ndarray:
    """float64 [K, 2] of pairs (target, stop), or of one of them. PriceError for anything else."""
    try:
        array = numbers(given)
    except PriceError:
        array = np.empty(1)
    if array.size and (array.ndim > 2 or array.shape[-1:] != (2,)):
        raise PriceError(
            f"{shown(given)} is no list of pairs: give a target and a stop each, as in [(107000, 103000)]."
        )
    return array.reshape(-1, 2)


@dataclass(frozen=True)
class Bracket:
    """A stop and a target, in prices, and how likely each of them is reached first.

    side: "long" (the stop below the last close, the target above) or "short".
    target, stop: float64 [...]; numbers of a single forecast.
    first: [..., H, 2], as of `Chances.first`.
    break_even: the share of decided trades that must reach the target for a loss of nothing, before fees.
    """

    side: Direction
    target: np.ndarray
    stop: np.ndarray
    first: np.ndarray
    break_even: float


class Chances:
    """Chances and stops of forecasts [...], in prices.

    Args:
        extremes: the model's table, or None; without one, only `above` can be asked.
        close: the close's quantiles [..., H, 19] in prices.
        last_close: [...].
    """

    def __init__(self, extremes: Extremes | None, close: np.ndarray, last_close: np.ndarray | float) -> None:
        self.extremes, self.last_close = extremes, np.asarray(last_close, dtype=np.float64)
        # In memory a level after the other: `above` compares and counts along the forecasts, thrice as fast.
        by_level = np.ascontiguousarray(np.moveaxis(np.log(close / self.last_close[..., None, None]), -1, 0))
        self.moves = np.moveaxis(by_level, 0, -1)
        self.width = width(np.log(close))

    def touch(self, price: Numbers) -> np.ndarray:
        """The chance [..., H] that a price is touched by each step: by a high if it lies above the last close, by a low
        if below; 1 at the close.

        Raises:
            PriceError: a price is not a number above 0.
            ModelError: the model has no table of extremes.
        """
        (move,) = self._moves("touched", price)
        distance = np.abs(move)[..., None] / self.width
        chances = np.ones_like(distance)
        for side, beyond in enumerate((move > 0, move < 0)):
            chances[beyond] = self.table.touched(side, distance[beyond])
        return np.maximum.accumulate(chances, axis=-1)  # what was reached before is reached

    def first(self, target: Numbers, stop: Numbers) -> np.ndarray:
        """The chances [..., H, 2] that the target, and that the stop, was reached first by each step; else neither was.

        A candle that reaches both counts for the stop. Vectors of targets and stops broadcast.

        Raises:
            PriceError: a price is not a number above 0; target and stop do not lie on opposite sides of the last close.
            ModelError: the model has no table, or one of before, which does not know what came first.
        """
        chances = self.first_or_nan(target, stop)
        if np.isnan(chances).any():
            at = np.broadcast_arrays(numbers(target), numbers(stop), self.last_close)
            high, low, close = (float(values[np.isnan(chances[..., 0, 0])].flat[0]) for values in at)
            raise PriceError(
                f"The target {grouped(high)} and the stop {grouped(low)} do not lie on opposite sides of the last "
                f"close, {grouped(close)}: give one price above it and one below."
            )
        return chances

    def first_or_nan(self, target: Numbers, stop: Numbers) -> np.ndarray:
        """As `first`, but NaN where target and stop do not lie on opposite sides of the last close."""
        if self.table.first is None:
            raise ModelError(
                "The model's table of extremes does not know which of two prices is reached first: train it again."
            )
        goal, loss = self._moves("reached", target, stop)
        apart = goal * loss < 0
        chances = np.full((*apart.shape, self.width.shape[-1], 2), np.nan)
        widths = np.broadcast_to(self.width, chances.shape[:-1])
        chances[apart] = self._first(goal[apart], loss[apart], widths[apart])
        return chances

    def _first(self, goal: np.ndarray, loss: np.ndarray, widths: np.ndarray) -> np.ndarray:
        """The chances [N, H, 2] of log-returns [N] on opposite sides, where forecasts have widths [N, H]."""
        up = np.maximum(goal, loss)[:, None] / widths
        down = -np.minimum(goal, loss)[:, None] / widths
        up_first, down_first, both, *touches = self.table.decided(up, down)
        long = (goal > 0)[:, None]
        gains, losses = np.where(long, up_first, down_first), np.where(long, down_first, up_first) + both
        to_goal, to_loss = (np.where(long, *of) for of in (touches, touches[::-1]))
        # What comes first is touched, and what is touched is decided. Between the levels of prices so near that many
        # candles do not leave the close, the shares alone would miss that by up to .2.
        losses = np.minimum(losses, to_loss)
        gains = np.clip(gains, to_goal - losses, to_goal)
        losses = np.maximum(losses, to_loss - gains)
        # What was decided before stays decided, and all three chances sum to 1. Each step has a table of its own, and
        # shares between its levels are interpolated: neither holds by itself.
        chances = np.zeros((*gains.shape, 2))
        won, lost = np.zeros(len(goal)), np.zeros(len(goal))
        for step in range(gains.shape[1]):
            won = np.maximum(won, np.minimum(gains[:, step], 1 - lost))
            lost = np.maximum(lost, np.minimum(losses[:, step], 1 - won))
            chances[:, step, 0], chances[:, step, 1] = won, lost
        return chances

    def above(self, price: Numbers) -> np.ndarray:
        """The chance [..., H] that the close of each step lies above a price.

        Between the quantiles it is linear in the logarithm of the price. Beyond the outermost it falls as a power of
        the distance from the median does that passes through the 10 and the 5 % quantile (the 90 and the 95 %).

        Raises:
            PriceError: a price is not a number above 0.
        """
        move = self._moves("closed above", price)[0][..., None]
        shape = np.broadcast_shapes(move.shape, self.moves.shape[:-1])
        levels = np.broadcast_to(self.moves, (*shape, len(QUANTILES)))
        # The interval between two levels in which the price lies, as a place from 0 to 17.
        left = np.clip((levels <= move[..., None]).sum(axis=-1) - 1, 0, len(QUANTILES) - 2)[..., None]
        start, end = (np.take_along_axis(levels, left + more, axis=-1)[..., 0] for more in (0, 1))
        # From the last level on 1, also where several are one price.
        share = np.where(end <= move, 1, np.clip((move - start) / np.maximum(end - start, TINY), 0, 1))
        below = QUANTILES[left[..., 0]] + share * (QUANTILES[1] - QUANTILES[0])
        chances = 1 - below
        for sign, tenth, twentieth in ((-1, 1, 0), (1, -2, -1)):
            beyond = sign * (move - levels[..., twentieth]) > 0
            distances = sign * (levels[beyond] - levels[beyond, 9, None])
            far = sign * (np.broadcast_to(move, shape)[beyond] - levels[beyond, 9])
            tail = _tail(far, distances[:, tenth], distances[:, twentieth])
            chances[beyond] = tail if sign > 0 else 1 - tail
        return chances

    def stop(self, probability: float, side: str) -> np.ndarray:
        """The price [..., H] that is touched within each step with this chance; side: up or down.

        Raises:
            PriceError: the probability is not between 0 and 1, or the side is neither up nor down.
            ModelError: such a stop lies more than e^MAX_STOP-fold from the close; the model has no table of extremes.
        """
        chance = numbers(probability)
        if side not in SIDES or chance.ndim or not 0 < chance < 1:
            raise PriceError(
                f"There is no stop on the side {side!r} with the chance {probability!r}: give up or down, and a "
                "chance between 0 and 1."
            )
        distance = self.table.reach(SIDES.index(side), float(chance))
        # A later stop is never nearer: what was reached within fewer steps was reached.
        move = np.maximum.accumulate(distance * self.width, axis=-1)
        if not (move <= MAX_STOP).all():
            raise ModelError(
                f"The stop on the side {side} with the chance {probability!r} lies more than e^{MAX_STOP}-fold from "
                "the close: ask for a larger chance, or train the model again."
            )
        return self.last_close[..., None] * np.exp(move if side == "up" else -move)

    def bracket(self, chance: float = 0.05, reward: float = 2, side: Direction = "long") -> Bracket:
        """The stop that is touched by the last step with this chance, and a target `reward` times as far in price.

        Raises:
            PriceError: the side is neither long nor short, the reward is not above 0, or the target would lie at the
                close, or that of a short not above 0.
            ModelError: as in `stop` and `first`.
        """
        times = numbers(reward)
        if side not in get_args(Direction) or times.ndim or not (np.isfinite(times) and times > 0):
            raise PriceError(
                f"There is no bracket on the side {shown(side)} with the reward {shown(reward)}: give long or short, "
                "and a number above 0."
            )
        stop = np.take(self.stop(chance, "down" if side == "long" else "up"), -1, axis=-1)
        target = self.last_close + times * (self.last_close - stop)
        far = f"A target {times:g} times as far from the close as a stop of {shown(chance)} would"
        if not (target > 0).all():
            raise PriceError(f"{far} not lie above 0: give a smaller reward or a larger chance.")
        if (target == self.last_close).any():
            raise PriceError(f"{far} lie at the close: give a larger reward or a smaller chance.")
        return Bracket(side, target, stop, self.first(target, stop), float(1 / (1 + times)))

    def columns(
        self, touch: Numbers = (), stop: Numbers = (), first: Pairs = (), above: Numbers = ()
    ) -> dict[str, np.ndarray]:
        """Columns [..., H] of prices, chances, pairs and prices.

        `touch_98000`; `stop_up_0.05`, `stop_down_0.05`; `target_first_107000_103000`, `stop_first_107000_103000`;
        `above_105000`. Of several forecasts, a pair is NaN where `first` refuses it.
        """
        chances = {f"touch_{price:.12g}": self.touch(price) for price in numbers(touch).ravel()}
        for p in numbers(stop).ravel():
            chances |= {f"stop_{side}_{p:g}": self.stop(p, side) for side in SIDES}
        reached = self.first_or_nan if self.last_close.ndim else self.first
        for target, loss in pairs(first):
            both = reached(target, loss)
            for place, name in enumerate(("target", "stop")):
                chances[f"{name}_first_{target:.12g}_{loss:.12g}"] = both[..., place]
        return chances | {f"above_{price:.12g}": self.above(price) for price in numbers(above).ravel()}

    @property
    def table(self) -> Extremes:
        """The model's table of extremes; ModelError if it has none."""
        if self.extremes is None:
            raise ModelError(
                "The model has no table of extremes, from which the chance of a touch is read: train it again."
            )
        return self.extremes

    def _moves(self, what: str, *given: Numbers) -> list[np.ndarray]:
        """The log-returns from the last close to prices, which broadcast."""
        prices = [numbers(each) for each in given]
        for each in prices:
            if (wrong := ~(np.isfinite(each) & (each > 0))).any():
                raise PriceError(f"The price {each[wrong][0]:g} cannot be {what}: give a number above 0.")
        try:
            *prices, close = np.broadcast_arrays(*prices, self.last_close)
        except ValueError:
            shapes = " and ".join(str(each.shape) for each in (*prices, self.last_close))
            raise PriceError(
                f"Arrays of the shapes {shapes} do not broadcast: give as many targets as stops, and of several "
                "forecasts one price, or one each."
            ) from None
        return [np.log(each / close) for each in prices]


def _tail(distance: np.ndarray, tenth: np.ndarray, twentieth: np.ndarray) -> np.ndarray:
    """The chance beyond distances from the median, of which that beyond `tenth` is 10 and beyond `twentieth` 5 %."""
    # The power of which the chance falls: at least the first, as `MAX_GROWTH` of a table of extremes has it.
    growth = np.log(np.maximum(twentieth, TINY) / np.clip(tenth, TINY, np.maximum(twentieth, TINY)))
    power = np.log(2) / np.clip(growth, TINY, np.log(2))
    far = np.maximum(distance / np.maximum(twentieth, TINY), 1)
    return np.maximum(0.05 * np.exp(-power * np.log(far)), MIN_CHANCE)
