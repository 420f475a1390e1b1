"""When candles and forecasts are too old: beyond Binance's own delay and two intervals."""

from datetime import UTC, datetime, timedelta

import pytest

from schemas.identity import SeriesId
from tasks.forecasting.staleness import find_stale, refreshed_by, stale_sentence
from tests.tools.forecast_tools import BTC, HOUR, PEPE, SIM_PEPE, START, append, rows_at, write_candles

NOON = datetime(2025, 6, 10, 12, tzinfo=UTC)


def candles_until(home, end, series=PEPE, tree="klines", name=None):
    """A hundred candles of which the last closes at `end`."""
    first = end - 100 * timedelta(seconds=series.seconds)
    write_candles(home, [1.0] * 100, series, first=first, tree=tree, name=name)


def stale_series(home, now, *series, **options):
    return [(s.series, s.what) for s in find_stale(home, series or [PEPE], now, **options)]


@pytest.mark.parametrize(
    ("end", "now", "stale"),
    [
        (datetime(2025, 6, 10, 0), datetime(2025, 6, 10, 12), False),  # yesterday's file is there
        (datetime(2025, 6, 10, 0), datetime(2025, 6, 11, 5, 59), False),  # today's may still be missing
        (datetime(2025, 6, 10, 0), datetime(2025, 6, 11, 6, 0), True),
        (datetime(2025, 6, 9, 22), datetime(2025, 6, 10, 12), False),  # two intervals
        (datetime(2025, 6, 9, 21), datetime(2025, 6, 10, 12), True),
        (datetime(2020, 1, 1), datetime(2025, 6, 10, 12), True),
    ],
)
def test_candles_of_daily_files_follow_their_publication(tmp_path, end, now, stale):
    candles_until(tmp_path, end.replace(tzinfo=UTC))

    assert stale_series(tmp_path, now.replace(tzinfo=UTC)) == ([(PEPE, "candle")] if stale else [])


@pytest.mark.parametrize(("hours", "stale"), [(0, False), (2, False), (2.1, True)])
def test_candles_of_the_rest_api_are_there_when_they_close(tmp_path, hours, stale):
    candles_until(tmp_path, NOON - 30 * HOUR)
    candles_until(tmp_path, NOON, tree="provisional", name="tail")

    assert bool(stale_series(tmp_path, NOON + hours * HOUR)) is stale


def test_a_grace_is_added_where_data_is_refreshed_once_an_hour(tmp_path):
    quarter = SeriesId("spot", "PEPEUSDT", "15m")
    candles_until(tmp_path, NOON - 2 * HOUR, quarter)
    candles_until(tmp_path, NOON, quarter, tree="provisional", name="tail")

    assert stale_series(tmp_path, NOON + HOUR, quarter) == [(quarter, "candle")]
    assert stale_series(tmp_path, NOON + HOUR, quarter, grace=HOUR) == []


def test_an_old_forecast_from_new_candles_is_stale(tmp_path):
    candles_until(tmp_path, START + 10 * HOUR)
    append(tmp_path, PEPE, rows_at(3))
    now = START + 11 * HOUR
    assert stale_series(tmp_path, now) == []  # 2025-06-01 07:00: the newest day's end is midnight

    candles_until(tmp_path, START + 10 * HOUR, tree="provisional", name="tail")
    write_candles(tmp_path, [1.0], first=START + 10 * HOUR, tree="provisional", name="tail")
    assert stale_series(tmp_path, now) == [(PEPE, "forecast")]


def test_simulated_data_and_absent_series_are_never_stale(tmp_path):
    candles_until(tmp_path, START, SIM_PEPE)
    append(tmp_path, SIM_PEPE, rows_at(series=SIM_PEPE))

    assert stale_series(tmp_path, None, SIM_PEPE, PEPE, BTC) == []


def test_a_coin_that_stopped_trading_is_not_stale_but_a_lagging_one_is(tmp_path):
    candles_until(tmp_path, NOON.replace(hour=0), BTC)
    candles_until(tmp_path, NOON - timedelta(days=10))
    assert stale_series(tmp_path, NOON, BTC, PEPE) == [(PEPE, "candle")]

    later = NOON + timedelta(days=10)
    candles_until(tmp_path, later.replace(hour=0), BTC)
    assert stale_series(tmp_path, later, BTC, PEPE) == []


def test_it_is_said_in_one_sentence_with_a_command(tmp_path):
    candles_until(tmp_path, NOON - timedelta(days=3))

    (stale,) = find_stale(tmp_path, [PEPE], NOON)

    found = "PEPEUSDT 1h: the newest candle is 3 days old (2025-06-07 12:00 UTC); refresh it with "
    unless = ", adding the --source of the candles unless that was Binance Vision"
    assert (
        stale_sentence(tmp_path, [stale]) == f"{found}`cpb ingest --coins PEPEUSDT --timeframes 1h`{unless}"
    )
    # With forecasts the command is the one that makes the next, and fetches candles too.
    append(tmp_path, PEPE, rows_at(0, 1.0, PEPE))
    command = "cpb forecast --coins PEPEUSDT --timeframes 1h"
    assert stale_sentence(tmp_path, [stale]) == f"{found}`{command}`{unless}"
    assert stale_sentence(tmp_path, [stale], "/a mirror") == f"{found}`{command} --source '/a mirror'`"
    shown = stale_sentence(tmp_path, [stale], "https://me:secret@mirror.example/k")
    assert shown == f"{found}`{command} --source https://mirror.example/k`"


def test_of_several_the_first_is_told_with_a_command_for_all(tmp_path):
    candles_until(tmp_path, NOON - timedelta(days=3))
    (one,) = find_stale(tmp_path, [PEPE], NOON)
    assert stale_sentence(tmp_path, [one]) == f"{one.finding}; {refreshed_by(tmp_path, [PEPE])}"
    candles_until(tmp_path, NOON - timedelta(days=3), BTC)
    told = stale_sentence(tmp_path, find_stale(tmp_path, [PEPE, BTC], NOON), "sources")
    assert told == (
        "PEPEUSDT 1h: the newest candle is 3 days old (2025-06-07 12:00 UTC); so it is with 1 more series; refresh "
        "them with `cpb ingest --coins PEPEUSDT,BTCUSDT --timeframes 1h --source sources`"
    )
    assert stale_sentence(tmp_path, []) == ""


def test_many_are_refreshed_by_the_command_without_names(tmp_path):
    many = [SeriesId("um", f"{coin}USDT", "1h") for coin in ("BTC", "ETH", "XRP", "SOL")]
    append(tmp_path, many[0], rows_at(0, 1.0, many[0]))
    assert refreshed_by(tmp_path, many).startswith("refresh them with `cpb forecast --market um`, adding")
    assert "`cpb forecast --coins BTCUSDT,ETHUSDT,XRPUSDT " in refreshed_by(tmp_path, many[:3])
    own = [SeriesId("own", "BTCEUR", "1h")]
    command = "refresh it with `cpb ingest --coins BTCEUR --timeframes 1h --source"
    assert refreshed_by(tmp_path, own) == f"{command} TABLE`"
    assert refreshed_by(tmp_path, own, "a.csv") == f"{command} a.csv`"
