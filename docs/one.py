"""The method of cpb on one page, numpy alone: zips of hourly candles -> price ranges, chances, and their score.

    python docs/one.py MIRROR COIN            for instance: python docs/one.py mirror BTC

MIRROR is a folder with files of https://data.binance.vision, laid out as there: the zips and their .CHECKSUM in
data/spot/{monthly,daily}/klines/BTCUSDT/1h. The results are those of `cpb train --arch robust-har --dtype float64`:
prices and chances to 1e-6, the CRPS ratio to 1e-4.

The direction cannot be forecast, the width can. A move is the log of a price over the last close. Shapes: rows of
candles, N origins (rows of the last known candle), H = 10 steps, 19 quantile levels.
"""

import argparse
import hashlib
import zipfile
import zlib
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple
from zoneinfo import ZoneInfo

import numpy as np

H = 10  # hours ahead
STEPS = np.arange(1, H + 1)
LEVELS = np.round(np.arange(1, 20) * 0.05, 2)  # of the quantiles
Q10, Q50, Q90 = 1, 9, 17  # their places
WINDOWS = (1, 3, 6, 12, 24, 72, 168)  # hours of the means that the line reads, up to a week
EMBARGO = WINDOWS[-1] + H  # hours between spans: no candle is an input in one and a target in the other
DECAY = 0.96  # of the EWMA volatility, an hour
RIDGE = 20.0  # penalty of the line's slopes
CHANCES = np.array([98, 94, 88, 81, 73, 65, 57, 50, 42, 34, 25, 18, 13, 10, 7, 5, 2.5, 1]) / 100
TENTHS = np.arange(1, 7)  # six more chances, tenfold smaller each
LOG_CHANCES = np.log(np.concatenate([[1.0], CHANCES, CHANCES[-1] * 0.1**TENTHS]))
TABLE_WINDOWS = 1_500
UP, DOWN = 0, 1


# 1. Candles
def read_candles(mirror: Path, pair: str) -> tuple[np.ndarray, np.ndarray]:
    """Open times [rows] in hours since 1970, UTC, and prices [rows, 4]: open, high, low, close."""
    files = []
    for period in ("monthly", "daily"):
        for path in sorted((mirror / "data/spot" / period / "klines" / pair / "1h").glob("*.zip")):
            checksum = path.with_name(path.name + ".CHECKSUM")
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            if not checksum.is_file() or checksum.read_text().split()[:1] != [digest]:
                raise SystemExit(f"{path} does not match its .CHECKSUM: fetch both files again.")
            with zipfile.ZipFile(path) as archive, archive.open(archive.namelist()[0]) as lines:
                files.append(np.loadtxt(lines, delimiter=",", usecols=range(5), ndmin=2))
    if not files:
        raise SystemExit(
            f"{mirror} has no hourly candles of {pair}: give a folder with files such as data/spot/monthly/klines/"
            "BTCUSDT/1h/BTCUSDT-1h-2025-05.zip, and a coin that it has, as BTC, or a pair, as ETHBTC."
        )
    times, *prices = np.concatenate(files).T
    hours = times / np.where(times < 1e14, 3.6e6, 3.6e9)  # milliseconds; since 2025 microseconds
    hours, rows = np.unique(hours, return_index=True)  # of a candle in two files the month's
    # After a halt in February 2018 candles opened at 28 minutes past the hour: they are left out.
    whole = hours == np.floor(hours)
    return hours[whole].astype(int), np.column_stack(prices)[rows[whole]]


# 2. Columns: what is known when a candle closes
class Columns(NamedTuple):
    """NaN for a week after an outage: no mean reaches across it."""

    prices: np.ndarray  # [rows, 4]
    design: np.ndarray  # [rows, 1 + 15 + 168], what the line reads
    sigma: np.ndarray  # [rows], EWMA volatility of one hour
    log_range: np.ndarray  # [rows]
    segments: np.ndarray  # [rows], number of the run of candles without an outage


def columns(hours: np.ndarray, prices: np.ndarray) -> Columns:
    """The inputs: logs of mean ranges and of mean |returns|, of the volatility, and the hour of the week."""
    opens, highs, lows, closes = prices.T
    before = np.concatenate([[np.nan], closes[:-1]])
    # A segment ends before a missing candle, and where the price leaps between two: another unit, another coin.
    starts = (np.diff(hours, prepend=0) != 1) | (np.abs(np.log(opens / before)) > np.log(1.5))
    returns = np.where(starts, np.nan, np.log(closes / before))
    sigma = ewma_volatility(returns)
    # The range says more of an hour's volatility than its return (Parkinson 1980, Journal of Business 53). Up to
    # 8 sigma: one trade far from the market must not count for a week.
    log_range = np.minimum(np.log(highs / lows), 8 * sigma)
    means = [
        # Every window that reaches back before its segment holds the NaN of the segment's first candle.
        np.log(np.clip(np.convolve(values, np.ones(n) / n)[: len(values)] / sigma, 0.05, 100))
        for values in (log_range, np.abs(returns))
        for n in WINDOWS
    ]
    # Of the coming candle, by the clock of New York: news and exchanges keep to it, also in summer.
    coming = [datetime.fromtimestamp(3600 * (h + 1), ZoneInfo("America/New_York")) for h in hours.tolist()]
    hour_of_week = np.eye(168)[[24 * time.weekday() + time.hour for time in coming]]
    design = np.column_stack([np.ones(len(closes)), *means, np.log(sigma), hour_of_week])
    return Columns(prices, design, sigma, log_range, np.cumsum(starts))


def ewma_volatility(returns: np.ndarray) -> np.ndarray:
    """sigma [rows]: root of a mean of squared returns, each weighing DECAY of the next (RiskMetrics 1996)."""
    sigma, total, weight = np.full(len(returns), np.nan), 0.0, 0.0
    for row, value in enumerate(returns.tolist()):
        if np.isnan(value):  # a segment starts
            total = weight = 0.0
        else:
            total, weight = DECAY * total + value**2, DECAY * weight + 1
            sigma[row] = max((total / weight) ** 0.5, 1e-6)
    return sigma


# 3. Spans: train | embargo | validation | embargo | test, in the order of time
def spans(hours: np.ndarray) -> dict[str, tuple[int, int]]:
    """Row ranges [a, b). The newest 120 days test; of a history too short for that, its newest 15 %."""
    end, longest = hours[-1] + 1, 120 * 24
    for test in (longest, min(int(0.15 * len(hours)), longest)):
        validation_end = end - test - EMBARGO
        validation = validation_end - test // 2
        times = [hours[0], validation - EMBARGO, validation, validation_end, end - test, end]
        a, b, c, d, e, f = np.searchsorted(hours, times).tolist()
        if b - a >= 180 * 24 and d - c >= test // 4 and f - e >= test // 2:  # half of each may be missing
            break
    return {"train": (a, b), "validation": (c, d), "test": (e, f)}


def origins(data: Columns, span: tuple[int, int]) -> np.ndarray:
    """Rows [N] with complete columns whose next H candles lie in the span and in the same segment."""
    rows = np.arange(span[0], span[1] - H)
    whole = data.segments[rows] == data.segments[rows + H]
    return rows[whole & np.isfinite(data.design[rows]).all(axis=1)]


# 4. A line to the scale of the coming moves, and their quantiles
def fit_line(data: Columns, rows: np.ndarray) -> np.ndarray:
    """Weights [184, H] of a heterogeneous autoregression (Corsi 2009, Journal of Financial Econometrics 7).

    Target: the log of the mean range of the next 1 .. H candles over sigma; with a floor, no candle decides alone.
    Ridge regression (Hoerl and Kennard 1970): (X'X + RIDGE I) w = X'y, where the intercept is not shrunk.
    """
    mean_range = data.log_range[rows[:, None] + STEPS].cumsum(axis=1) / STEPS
    target = np.log(np.maximum(mean_range / data.sigma[rows, None], 0.05))
    design = data.design[rows]
    penalty = RIDGE * np.eye(design.shape[1])
    penalty[0, 0] = 0
    return np.linalg.solve(design.T @ design + penalty, design.T @ target)


def forecast_scale(data: Columns, weights: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """[N, H]: sigma x sqrt(step), a random walk's, times exp of the line, which extrapolates: at most e^3-fold."""
    return np.exp(np.clip(data.design[rows] @ weights, -3, 3)) * (data.sigma[rows, None] * np.sqrt(STEPS))


def realised(data: Columns, rows: np.ndarray) -> np.ndarray:
    """Moves [N, H] of the close."""
    closes = data.prices[:, 3]
    return np.log(closes[rows[:, None] + STEPS] / closes[rows, None])


def fit_table(data: Columns, weights: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Quantiles [H, 19] of the moves over their scale. Any forecast is its own scale times this table."""
    return np.quantile(realised(data, rows) / forecast_scale(data, weights, rows), LEVELS, axis=0).T


# 5. Extremes: the chance of a touch, and of a target before a stop
def fit_extremes(data: Columns, rows: np.ndarray, width: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`nodes` and `first` of `Model`, counted in windows whose forecasts had these widths [N, H].

    Both sides are counted in the same windows: a market that has risen has seldom fallen first.
    """
    moves = np.log(data.prices[rows[:, None] + STEPS, 1:3] / data.prices[rows, 3][:, None, None])
    # [2, N, H]: how far up and down by each step
    reached = np.maximum.accumulate([moves[..., 0], -moves[..., 1]], axis=-1)
    ratios = np.quantile(np.clip(reached / width, 0, 1e4), 1 - CHANCES, axis=1)
    levels = np.moveaxis(ratios, 0, -1).astype(np.float16).astype(float)  # [2, H, 18], as cpb stores them
    # Beyond 1 % the chance falls as a power of the distance does, at the rate from 10 to 1 %.
    growth = np.clip(levels[..., -1:] / np.maximum(levels[..., CHANCES == 0.1], 1e-12), 1, 10)
    nodes = np.concatenate([np.zeros((2, H, 1)), levels, levels[..., -1:] * growth**TENTHS], axis=-1)
    first = np.zeros((3, H, 19, 19))
    for h in range(H):
        prices = nodes[:, h, :19, None] * width[:, h]  # [2, 19, N]: a price stands still while steps pass
        # Which candle reaches each price first, from 0; h + 1: none.
        candle = (reached[:, None, :, : h + 1] < prices[..., None]).sum(axis=-1)
        up, down = candle[UP][:, None], candle[DOWN][None]
        by_up, by_down = (np.maximum((side <= h).sum(axis=-1), 1) for side in (up, down))
        first[0, h] = (up < down).sum(axis=-1) / by_up
        first[1, h] = (down < up).sum(axis=-1) / by_down
        first[2, h] = ((up == down) & (up <= h)).sum(axis=-1) / by_up
    return nodes, first.astype(np.float16).astype(float)


class Model(NamedTuple):
    """What a forecast needs. Widths are q90 - q10 of the forecast, so that one table serves calm and wild hours."""

    weights: np.ndarray  # [184, H] of the line
    table: np.ndarray  # [H, 19], quantiles in units of the line's scale
    nodes: np.ndarray  # [2, H, 25], distances in widths, up and down, that are reached with the LOG_CHANCES
    # [3, H, 19, 19] by distances up and down: of the windows that reach up, the share that does so before down; of
    # those that reach down, before up; of those that reach up, the share that reaches down within the same candle.
    first: np.ndarray

    def touched(self, side: int, step: int, distance: float) -> float:
        """The chance that prices go this far by this step: its log is linear between the nodes."""
        return float(np.exp(np.interp(distance, self.nodes[side, step], LOG_CHANCES)))


def touch(model: Model, width: np.ndarray, move: float) -> np.ndarray:
    """The chance [H] that a high (of a move up) or a low reaches this move by each step; width [H]."""
    side = UP if move > 0 else DOWN
    chances = [model.touched(side, h, abs(move) / width[h]) for h in range(H)]
    return np.maximum.accumulate(chances)  # what was reached stays reached


def target_or_stop(model: Model, width: np.ndarray, target: float, stop: float) -> np.ndarray:
    """The chances [H, 2] that the target, and that the stop, is reached first by each step; moves of opposite signs.

    A candle that reaches both counts for the stop.
    """
    chances, won, lost = np.zeros((H, 2)), 0.0, 0.0
    for h in range(H):
        distances = max(target, stop) / width[h], -min(target, stop) / width[h]
        reached = [model.touched(side, h, distances[side]) for side in (UP, DOWN)]
        # Between the four nearest of the 19 x 19 distances the shares are bilinear.
        places = [np.interp(distances[side], model.nodes[side, h, :19], np.arange(19)) for side in (UP, DOWN)]
        i, j = (min(int(place), 17) for place in places)
        a, b = places[UP] - i, places[DOWN] - j
        shares = np.array([1 - a, a]) @ model.first[:, h, i : i + 2, j : j + 2] @ np.array([1 - b, b])
        of_target, of_stop = (UP, DOWN) if target > 0 else (DOWN, UP)
        gain, loss = shares[of_target] * reached[of_target], shares[of_stop] * reached[of_stop]
        # What comes first is touched, what is touched is decided, and what was decided stays so.
        loss = min(loss + shares[2] * reached[UP], reached[of_stop])
        gain = min(max(gain, reached[of_target] - loss), reached[of_target])
        loss = max(loss, reached[of_stop] - gain)
        won = max(won, min(gain, 1 - lost))
        lost = max(lost, min(loss, 1 - won))
        chances[h] = won, lost
    return chances


# 6. All of it: fit, forecast, judge, say
def fit(data: Columns, parts: dict[str, tuple[int, int]], pair: str) -> Model:
    """The model of the training span; for the chances, windows of the validation span are counted, too."""
    rows = origins(data, parts["train"])
    weights = fit_line(data, rows)
    table = fit_table(data, weights, rows)
    rows = np.concatenate([rows, origins(data, parts["validation"])])
    if len(rows) > TABLE_WINDOWS:  # one from each of as many parts, by the seed of `cpb train`
        edges = np.arange(TABLE_WINDOWS + 1) * len(rows) // TABLE_WINDOWS
        seed = zlib.crc32(f"1/robust-har/{pair}/1h".encode())
        rows = rows[np.random.default_rng(seed).integers(edges[:-1], edges[1:])]
    width = forecast_scale(data, weights, rows) * (table[:, Q90] - table[:, Q10])
    return Model(weights, table, *fit_extremes(data, rows, width))


def forecast(data: Columns, model: Model, rows: np.ndarray) -> np.ndarray:
    """Quantiles [N, H, 19] of the moves after these rows."""
    return forecast_scale(data, model.weights, rows)[..., None] * model.table


def crps(data: Columns, model: Model, rows: np.ndarray) -> float:
    """Continuous ranked probability score, how far the forecasts lie from what came, as twice the mean pinball loss of
    their quantiles (Gneiting and Raftery 2007, Journal of the American Statistical Association 102).
    """
    error = realised(data, rows)[..., None] - forecast(data, model, rows)
    return float(2 * np.maximum(LEVELS * error, (LEVELS - 1) * error).mean())


def crps_ratio(data: Columns, parts: dict[str, tuple[int, int]], model: Model) -> float:
    """CRPS on the test span over that of a random walk, which has the same sigma and no line: its weights are 0."""
    learned, tested = (origins(data, parts[name]) for name in ("train", "test"))
    weights = np.zeros_like(model.weights)
    walk = model._replace(weights=weights, table=fit_table(data, weights, learned))
    return crps(data, model, tested) / crps(data, walk, tested)


def main() -> None:
    """Answer for one coin what people ask: how far may it go, and how good was such a forecast?"""
    parser = argparse.ArgumentParser(description="cpb's method on one page")
    parser.add_argument("mirror", type=Path, help="folder with files of Binance Vision, laid out as there")
    parser.add_argument("coin", help="as BTC, whose price is in USDT, or a pair, as ETHBTC")
    asked = parser.parse_args()
    coin = asked.coin.upper().replace("/", "")
    there = [name for name in (coin, f"{coin}USDT") if any(asked.mirror.glob(f"data/spot/*/klines/{name}"))]
    pair = there[0] if there else coin
    hours, prices = read_candles(asked.mirror, pair)
    data, parts = columns(hours, prices), spans(hours)
    if not all(len(origins(data, part)) for part in parts.values()):
        raise SystemExit(f"{len(hours):,} hourly candles of {pair} are too few: give two months or more.")
    model = fit(data, parts, pair)
    row = np.flatnonzero(np.isfinite(data.design).all(axis=1))[-1]
    last, (moves,) = prices[row, 3], forecast(data, model, np.array([row]))
    width = moves[:, Q90] - moves[:, Q10]

    def when(hour: int) -> str:
        return f"{datetime.fromtimestamp(3600 * int(hour), UTC):%Y-%m-%d %H:%M} UTC"

    def price(move: float) -> str:
        value = last * np.exp(move)
        return f"{value:,.{max(5 - int(np.floor(np.log10(value))), 0)}f}"  # six significant digits

    print(f"{pair} closed at {price(0)} on {when(hours[row] + 1)}. With a chance of 80 % it will close")
    for h in range(H):
        low, median, high = (price(moves[h, q]) for q in (Q10, Q50, Q90))
        print(f"  {h + 1:2} h later between {low} and {high}, the median is {median}")
    up, down, stop = np.log([1.02, 0.98, 0.99])
    for move in (up, down):
        print(f"It touches {price(move)} within {H} h with a chance of {touch(model, width, move)[-1]:.1%}.")
    won, lost = target_or_stop(model, width, up, stop)[-1]
    print(f"Target {price(up)} or stop {price(stop)}: the target comes first with a chance of {won:.1%},")
    print(f"the stop with {lost:.1%}, and neither within {H} h with {1 - won - lost:.1%}.")
    ratio, since = crps_ratio(data, parts, model), when(hours[parts["test"][0]])
    print(f"CRPS ratio {ratio:.4f}: since {since}, of which nothing was learnt, such forecasts had")
    print(
        f"{abs(1 - ratio):.1%} {'less' if ratio < 1 else 'more'} error than a random walk that knows the volatility."
    )


if __name__ == "__main__":
    main()
