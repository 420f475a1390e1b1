"""Train, validation and test spans, shared by every series of a timeframe.

Shared, because a universal model learns all coins together: with separate spans per coin, it could train on the test
days of the market through another coin. Spans are separated by an embargo, the longest rolling window (168) plus the
horizon (10): no feature of a test row overlaps with a target of a training row.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from cpbmodels.data import EMBARGO, FEATURE_WARMUP, HORIZON, INTERVAL_SECONDS, MAX_STILL_SHARE
from cpbmodels.data.series import Series, instant
from schemas.errors import MemberError, UsageError
from schemas.handover import SeriesRecord, SplitBounds
from schemas.identity import SeriesId

TEST_SHARE, MAX_TEST = 0.15, 2880
"""Length of a test span: a share of the history, and at most this many candles (120 days at 1h, 30 days at 15m)."""
LONG_TEST, LONG_TRAIN = timedelta(days=120), timedelta(days=180)
"""One month is too short a test (May 2025 made 15m look worse than the seven months before it), so a shorter test is
extended to `LONG_TEST` if every series keeps `LONG_TRAIN` to learn from and half of its validation and test spans."""
VALIDATION_SHARE = 0.5
"""Length of a validation span, as a share of the test span."""
MIN_ROWS = 48
FROZEN, STILL = "frozen", "still"
"""Codes of series from whose candles nothing can be learnt, although nothing went wrong."""


def split_bounds(records: Sequence[SeriesRecord]) -> SplitBounds:
    """Return the spans of one timeframe's series, counted backwards from the newest candle of any of them.

    Raises:
        ValueError: no record, or records of different timeframes.
    """
    return fold_bounds(records, 1)[0]


def fold_bounds(records: Sequence[SeriesRecord], count: int) -> list[SplitBounds]:
    """Return rolling-origin folds, oldest first; their test spans are adjacent and the last is the newest.

    Each trains from the first candle.

    Raises:
        UsageError: the history is too short for `count` folds.
    """
    # by the longest history: a young coin must not shorten the test of all others
    usual = _usual_test(max(r.rows for r in records))
    long = LONG_TEST // _grid(records)[1]
    if long > usual:
        longer = _folds(records, count, long)
        # in every fold: one coin too short in one of them, and all keep the usual length
        if all(_is_long_enough(record, bounds) for record in records for bounds in longer):
            return longer
    shorter = _folds(records, count, usual)
    first, step = shorter[0].train, _grid(records)[1]
    # one fold is checked series by series (`check_enough`); of several, the first has the least to train on
    if count > 1 and (first[1] - first[0]) // step < FEATURE_WARMUP + MIN_ROWS:
        raise UsageError(
            f"folds {count}: the {shorter[0].timeframe} history is too short; use fewer folds or an earlier since",
            code="history",
            field="folds",
        )
    return shorter


def shortened(records: Sequence[SeriesRecord], count: int) -> str:
    """Return which series keep one timeframe's test spans from being `LONG_TEST`, in a sentence; "" if none does.

    A history that is too short for that with every series is nobody's fault.
    """
    usual, (timeframe, step, *_) = _usual_test(max(r.rows for r in records)), _grid(records)
    if usual * step >= LONG_TEST:
        return ""
    longer = _folds(records, count, LONG_TEST // step)
    short = [r for r in records if not all(_is_long_enough(r, bounds) for bounds in longer)]
    # no coin stands out: it is the history that is short, not these coins
    if not short or len(short) == len(records):
        return ""
    names, days = ", ".join(r.series.name for r in short), usual * step / timedelta(days=1)
    return (
        f"Test spans at {timeframe} are {days:.0f} days instead of {LONG_TEST.days}, because {len(short)} of "
        f"{len(records)} series end or begin within the longer ones: {names}; without them the test is longer"
    )


def _usual_test(rows: int) -> int:
    """Return the length of a test span in candles, for a history of `rows` candles."""
    return max(1, min(int(rows * TEST_SHARE), MAX_TEST))


def _is_long_enough(record: SeriesRecord, bounds: SplitBounds) -> bool:
    """Whether a series keeps enough candles for a long test span, not counting holes."""
    step = timedelta(seconds=record.series.seconds)
    return record.candles_in(bounds.train) * step >= LONG_TRAIN and all(
        2 * record.candles_in(span) * step >= span[1] - span[0] for span in (bounds.validation, bounds.test)
    )


def _folds(records: Sequence[SeriesRecord], count: int, test: int) -> list[SplitBounds]:
    """Return the folds with a test span of `test` candles; the first fold may have no training candles."""
    timeframe, step, start, end = _grid(records)
    validation = max(1, int(test * VALIDATION_SHARE))
    result = []
    # laid out backwards from the newest candle, as the newest test says most of tomorrow:
    # … train | embargo | validation | embargo | test; the next older fold ends where this test begins
    for back in range(count - 1, -1, -1):
        stop = end - back * test * step
        test_from = stop - test * step
        # the last validation target, HORIZON candles on, and the longest window of the first test row do not meet
        validation_to = test_from - EMBARGO * step
        validation_from = validation_to - validation * step
        train_to = validation_from - EMBARGO * step
        result.append(
            SplitBounds(
                timeframe=timeframe,
                # never before its start: a history that is too short has an empty span, which `check_enough` names
                train=(min(start, train_to), train_to),
                validation=(validation_from, validation_to),
                test=(test_from, stop),
            )
        )
    return result


def check_enough(
    name: SeriesId | str,
    rows: dict[str, int],
    total: int,
    bounds: SplitBounds,
) -> None:
    """Raise `MemberError` unless each span (`rows`: span name -> candles) has enough candles."""
    step = timedelta(seconds=INTERVAL_SECONDS[bounds.timeframe])
    for split, (start, end) in bounds.items():
        min_rows = MIN_ROWS + (FEATURE_WARMUP if split == "train" else 0)
        if rows[split] >= min_rows:
            continue
        # what lies behind the training span, and the fewest rows in it that can be learnt from
        needed = (bounds.test[1] - bounds.train[1]) // step + FEATURE_WARMUP + MIN_ROWS
        if total < needed:
            needed = max(needed, _min_rows())
            raise MemberError(
                f"{name}: only {total} rows; needs at least {needed} for train, validation and test"
            )
        raise MemberError(
            f"{name}: {rows[split]} rows in the {split} span {start:%Y-%m-%d} to {end:%Y-%m-%d}; "
            f"needs at least {min_rows}: was it listed or delisted within it?"
        )


def _min_rows() -> int:
    """Return the shortest history with long enough spans: they grow with it, so there is no closed form."""
    # counted up: the test span is rounded down and capped, so no formula inverts it
    rows = FEATURE_WARMUP
    while True:
        test = _usual_test(rows)
        validation = max(1, int(test * VALIDATION_SHARE))
        train = rows - test - validation - 2 * EMBARGO
        if train >= FEATURE_WARMUP + MIN_ROWS and min(test, validation) >= MIN_ROWS:
            return rows
        rows += 1


def check_windows(series: Series, name: SeriesId | str, bounds: SplitBounds) -> None:
    """Raise `MemberError` unless the price moves in each span after an origin: a complete row before a horizon.

    In the training span at most `MAX_STILL_SHARE` of the candles may stand still.
    """
    for split, (start, end) in bounds.items():
        origins, span = series.origins(split, 1, HORIZON), f"{split} span {start:%Y-%m-%d} to {end:%Y-%m-%d}"
        # its σ is 0 there, and every score would be undefined
        if series.is_frozen(origins):
            raise MemberError(
                f"{name}: its price never moves in the {span}, so nothing can be learnt or "
                "judged: leave the coin out",
                code=FROZEN,
            )
        if not len(origins):
            raise MemberError(
                f"{name}: no origin in the {span}; features are complete {FEATURE_WARMUP} "
                f"candles after a listing, hole or leap of the price level and a target needs {HORIZON} more: choose "
                "an earlier since or leave the coin out"
            )
    if (share := series.still_share("train")) > MAX_STILL_SHARE:
        start, end = bounds.train
        raise MemberError(
            f"{name}: {share:.0%} of the candles in the train span {start:%Y-%m-%d} to {end:%Y-%m-%d} stand still "
            f"(open = high = low = close, volume 0; {MAX_STILL_SHARE:.0%} may), and a model would learn the filling: "
            "leave the coin out, or begin later with since",
            code=STILL,
        )


def _grid(records: Sequence[SeriesRecord]) -> tuple[str, timedelta, datetime, datetime]:
    # unpacking fails for none and for several, which is the caller's mistake
    (timeframe,) = {record.series.timeframe for record in records}
    step = timedelta(seconds=INTERVAL_SECONDS[timeframe])
    start = instant(min(r.first_us for r in records))
    end = instant(max(r.last_us for r in records)) + step
    return timeframe, step, start, end
