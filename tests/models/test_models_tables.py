"""Tables in the library: columns by their exact names first, no guess between two readings, the row of the file."""

import re
import shlex
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpbmodels import ModelError, Series, train_fleet
from cpbmodels.data.candles import read_candles
from cpbmodels.data.column_names import choose, clean_symbol
from cpbmodels.freqtrade import add_forecasts
from schemas.reading import Reading
from tests.tools.candles import table as candles

NAMES = [
    "open",
    "Open",
    "OPEN",
    "<open>",
    "o",
    "O",
    "high",
    "low",
    "l",
    "L",
    "close",
    "c",
    "v",
    "V",
    "date",
    "t",
    "T",
]
PRICES = ["open", "high", "low", "close"]
FEBRUARY = datetime(2018, 2, 7, tzinfo=UTC)


def pandas_of(frame):
    times = pd.to_datetime(frame["open_time"].dt.replace_time_zone(None).to_numpy(), utc=True)
    return pd.DataFrame(
        {"open_time": times, **{n: frame[n].to_numpy() for n in frame.columns if n != "open_time"}}
    )


def with_thousands(frame, scale=1000, digits=2):
    return frame.with_columns(
        pl.col(name).map_elements(lambda value: f"{value * scale:,.{digits}f}", pl.String) for name in PRICES
    )


def websocket(frame):
    """Binance's kline messages: L is the last trade's id, V the takers' volume and stands before v."""
    names = {"open_time": "t", "open": "o", "close": "c", "high": "h", "low": "l"}
    close = (frame["open_time"].dt.epoch("ms") + 3_599_999).alias("T")
    return (
        frame.with_columns(pl.col("open_time").dt.epoch("ms"))
        .rename(names)
        .select(
            "t",
            close,
            pl.lit("BTCUSDT").alias("s"),
            pl.lit("1h").alias("i"),
            pl.lit(1).alias("f"),
            (pl.int_range(pl.len()) * 7 + 3).alias("L"),
            (pl.col("volume") / 2).alias("V"),
            "o",
            "c",
            "h",
            "l",
            pl.col("volume").alias("v"),
            pl.lit(False).alias("x"),
        )
    )


def test_an_exact_name_wins_and_capital_letters_are_no_prices():
    frame = candles()
    wanted, read = Series.from_frame(frame), Series.from_frame(websocket(frame), "BTCUSDT")
    for name in ("prices", "features", "times"):
        np.testing.assert_array_equal(getattr(read, name), getattr(wanted, name))
    both = frame.with_columns(Close=pl.lit(1.0), LOW=pl.lit(1e-9))
    np.testing.assert_array_equal(Series.from_frame(both).prices, wanted.prices)
    capitals = frame.rename({"open": "O", "high": "H", "low": "L", "close": "C", "volume": "V"})
    with pytest.raises(
        ModelError, match=r"column open is missing .*--columns open=NAME .*columns=\{'open': 'NAME'\}"
    ):
        Series.from_frame(capitals)
    given = dict(zip(("open", "high", "low", "close", "volume"), "OHLCV", strict=True))
    np.testing.assert_array_equal(Series.from_frame(capitals, columns=given).features, wanted.features)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("date", "Close", "CLOSE"), r"'Close' and 'CLOSE' may both be the close: .*--columns close=Close"),
        (("date", "close", "c"), "'close' and 'c' may both be the close"),
        (("date", "close", "close_duplicated_0"), "'close' and 'close' may both be the close"),
        (("date", "Close", "Close.1"), "'Close' and 'Close' may both be the close"),
        (("date", "Close", "Close_duplicated_0"), "'Close' and 'Close' may both be the close"),
        (("Date", "DATE"), "'Date' and 'DATE' may both be the time"),
        (("date", "Volume ETH", "Volume BTC"), "'Volume ETH' and 'Volume BTC' may both be the volume"),
    ],
)
def test_two_columns_of_one_meaning_are_refused_by_name(names, words):
    with pytest.raises(ModelError, match=words):
        choose([*names, *(n for n in PRICES if not any(n == x.lower() or n[0] == x for x in names))], "x")


@pytest.mark.parametrize("unit", ["USDT", "KRW", "chf", "Currency"])
def test_the_volume_is_the_one_in_coins(unit):
    assert choose(["date", *PRICES, f"Volume {unit}", "Volume BTC"], "x").numbers["volume"] == "Volume BTC"


def test_the_option_that_says_a_column_can_be_typed():
    names = ["date", *PRICES, "Volume ETH", "Volume BTC"]
    with pytest.raises(ModelError) as caught:
        choose(names, "x")
    typed = shlex.split(re.search(r"--columns (.+?) \(in Python", str(caught.value))[1])
    assert typed == ["volume=Volume ETH"]
    assert choose(names, "x", Reading(*typed).roles).numbers["volume"] == "Volume ETH"


def test_given_columns_are_found_or_named(tmp_path):
    path = tmp_path / "x.csv"
    names = ["Date", "Open", "High", "Low", "Last", "Amount"]
    given = {"time": "date", "close": "Last", "volume": "Amount"}
    chosen = choose(names, "x", given)
    assert (chosen.times, chosen.numbers["close"], chosen.numbers["volume"]) == (
        {"time": "Date"},
        "Last",
        "Amount",
    )
    path.write_text(
        "Last, seen today\n\nDate,Open,High,Low,Last\n" + "2025-01-01,1.5,1.5,1.5,1.5\n2025-01-02,2,2,2,2\n"
    )
    assert Series.from_frame(path, columns={"close": "Last"}).prices[1].tolist() == [2, 2, 2, 2]
    with pytest.raises(ModelError, match=r"no column called 'Lasst', given as close \(columns: Date, Open"):
        choose(names, "x", {"close": "Lasst"})
    with pytest.raises(ModelError, match="'price' is unknown: choose one of time, open"):
        choose(names, "x", {"price": "Last"})


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(NAMES), unique=True))
def test_any_names_are_chosen_without_a_guess(names):
    try:
        chosen = choose(names, "x")
    except ModelError as error:
        refused = str(error)
    else:
        refused = ""
    if refused:
        assert "may both be" in refused
        return
    assert not {*chosen.numbers.values(), *chosen.times.values()} & {"L", "V", "O", "T"}
    for role, column in chosen.numbers.items():
        assert column in (role, role[0]) or not {role, role[0]} & {*names}


def test_two_columns_of_certain_times_that_differ_are_refused():
    frame = candles()
    closes = (pl.col("open_time").dt.epoch("s") + 3600).alias("timestamp")
    two = frame.with_columns(closes, pl.col("open_time").alias("Date")).drop("open_time")
    with pytest.raises(
        ModelError, match=r"'timestamp' and 'Date' differ, first in row 0, .*--columns time=timestamp"
    ):
        Series.from_frame(two)
    wanted = Series.from_frame(frame).times
    for said in ({"time": "Date"}, {"time": "date"}):
        np.testing.assert_array_equal(Series.from_frame(two, columns=said).times, wanted)
    same = two.with_columns(pl.col("timestamp") - 3600)
    np.testing.assert_array_equal(Series.from_frame(same).times, wanted)
    np.testing.assert_array_equal(
        Series.from_frame(frame.with_columns(closes)).times, wanted
    )  # open_time says it
    numbers = frame.rename({"open_time": "date"}).with_columns(ts=pl.int_range(pl.len()))
    with pytest.raises(ModelError, match="ts 0 in row 0 is not a time since 1970"):
        Series.from_frame(numbers)


def test_prices_as_texts_with_thousands_separators():
    frame = candles()
    wanted = Series.from_frame(frame.with_columns((pl.col(PRICES) * 1000).round(2)))
    for texts in (with_thousands(frame), pandas_of(with_thousands(frame))):
        np.testing.assert_array_equal(Series.from_frame(texts).prices, wanted.prices)
    whole = with_thousands(frame, digits=0)  # 98,765 everywhere
    with pytest.raises(ModelError, match=r"open '\d+,\d+' in row \d+ can be read as .* or .*decimal='point'"):
        Series.from_frame(whole)
    rounded = Series.from_frame(frame.with_columns((pl.col(PRICES) * 1000).round(0)))
    np.testing.assert_array_equal(Series.from_frame(whole, decimal="point").prices, rounded.prices)
    with pytest.raises(ModelError, match="decimal 'dot' is unknown: choose one of point, comma"):
        Series.from_frame(whole, decimal="dot")


@pytest.mark.parametrize(
    ("separator", "quote", "is_read"),
    [(",", "", True), (",", '"', False), (";", "", False), ("\t", "", False)],
)
def test_three_decimals_everywhere_are_thousands_unless_the_comma_separates(
    tmp_path, separator, quote, is_read
):
    rows = [
        f"{1704067200 + 3600 * row}{separator}" + separator.join([f"{quote}3.{364 + row}{quote}"] * 4)
        for row in range(30)
    ]
    path = tmp_path / "x.csv"
    path.write_text("\n".join([separator.join(["time", *PRICES]), *rows]))
    if is_read:
        assert Series.from_frame(path).prices[0, 0] == 3.364
    else:
        with pytest.raises(ModelError, match=r"open '3.364' in row 0 .* can be read as 3.364 or 3364"):
            Series.from_frame(path)
    assert Series.from_frame(path, decimal="point").prices[0, 0] == 3.364
    assert Series.from_frame(path, decimal="comma").prices[0, 0] == 3364


@pytest.mark.parametrize("kind", [pl.Int128, pl.UInt64, pl.Float64, pl.Decimal(30, 3)])
def test_counts_of_any_type_are_times(kind):
    frame = candles()
    counts = frame.with_columns(pl.col("open_time").dt.epoch("ms").cast(kind))
    np.testing.assert_array_equal(Series.from_frame(counts).times, Series.from_frame(frame).times)
    wrong = counts.with_columns(
        pl.when(pl.int_range(pl.len()) == 7).then(7).otherwise("open_time").alias("open_time")
    )
    with pytest.raises(ModelError, match=r"open_time 7(\.000)? in row 7 is not a time since 1970"):
        Series.from_frame(wrong.with_columns(pl.col("open_time").cast(kind)))


def test_aware_times_of_two_zones_in_one_column():
    frame = candles()
    zones = [timezone(timedelta(hours=1 + (row > 100))) for row in range(len(frame))]
    times = [time.astimezone(zone) for time, zone in zip(frame["open_time"], zones, strict=True)]
    wanted = Series.from_frame(frame).times
    table = pandas_of(frame).assign(open_time=pd.Series(times, dtype=object))
    np.testing.assert_array_equal(Series.from_frame(table).times, wanted)
    np.testing.assert_array_equal(Series.from_frame(table.set_index("open_time")).times, wanted)
    np.testing.assert_array_equal(
        Series.from_frame(table.set_index("open_time").rename_axis(None)).times, wanted
    )
    objects = frame.with_columns(pl.Series("open_time", times, dtype=pl.Object))
    np.testing.assert_array_equal(Series.from_frame(objects).times, wanted)
    times[7] = times[7].replace(tzinfo=None)
    with pytest.raises(ModelError, match="in row 7 is not a time like those before"):
        Series.from_frame(pandas_of(frame).assign(open_time=pd.Series(times, dtype=object)))


@pytest.mark.parametrize("suffix", ["frame", "csv", "parquet"])
def test_a_column_that_names_another_coin_is_refused(tmp_path, suffix):
    def source(frame):
        if suffix == "frame":
            return frame
        getattr(frame, f"write_{suffix}")(path := tmp_path / f"x.{suffix}")
        return path

    frame = candles()
    eth = source(frame.with_columns(symbol=pl.lit("ETH/USDT")))
    with pytest.raises(ModelError, match="column symbol names ETH/USDT, not BTCUSDT"):
        Series.from_frame(eth, "BTCUSDT")
    for name in ("ETHUSDT", "ETH", "eth/usdt", "ETH/USDT:USDT", None):
        assert len(Series.from_frame(eth, name)) == len(frame)
    with pytest.raises(ModelError, match="names ETH/USDT, not ETHUSD:"):
        Series.from_frame(eth, "ETHUSD")
    two = source(pl.concat([frame.with_columns(pair=pl.lit(name)) for name in ("BTCUSDT", "ETHUSDT")]))
    for name in ("BTCUSDT", None):
        with pytest.raises(ModelError, match=r"column pair names BTCUSDT, ETHUSDT: .*pl\.col\('pair'\)"):
            Series.from_frame(two, name)
    with pytest.raises(ModelError, match="column interval names 1h, not 4h"):
        Series.from_frame(frame.with_columns(interval=pl.lit("1h")), timeframe="4h")
    with pytest.raises(
        ModelError, match="not on the UTC grid of 4h candles"
    ):  # its own word counts like an argument
        Series.from_frame(source(frame.with_columns(interval=pl.lit("4h"))))
    assert Series.from_frame(source(frame.with_columns(interval=pl.lit("hourly")))).timeframe == "1h"


def test_an_index_without_a_name_in_files_that_pandas_wrote(tmp_path):
    frame = candles()
    table = pandas_of(frame).set_index("open_time").rename_axis(None)
    wanted = Series.from_frame(table)
    table.to_parquet(tmp_path / "x.parquet")
    table.to_csv(tmp_path / "x.csv")
    for source in (tmp_path / "x.parquet", tmp_path / "x.csv", pd.read_csv(tmp_path / "x.csv")):
        np.testing.assert_array_equal(Series.from_frame(source).times, wanted.times)
        np.testing.assert_allclose(Series.from_frame(source).prices, wanted.prices, rtol=1e-15)
    table.reset_index(drop=True).to_csv(tmp_path / "numbers.csv")
    with pytest.raises(ModelError, match=r"the index 0 in row 0 \(line 2\) is not a time since 1970"):
        Series.from_frame(tmp_path / "numbers.csv")


def february(rows=400):
    """Hourly candles around Binance's halt: for two days they opened 28 minutes past the hour."""
    times = [FEBRUARY + timedelta(hours=hour) for hour in range(rows)]
    late = {hour: times[hour] + timedelta(minutes=28) for hour in range(57, 81)}
    return candles(rows).with_columns(
        open_time=pl.Series(
            [late.get(hour, time) for hour, time in enumerate(times)], dtype=pl.Datetime("us", "UTC")
        )
    )


def test_binances_own_candles_off_the_grid_are_kept_apart():
    frame = february()
    assert frame["open_time"][57] == datetime(2018, 2, 9, 9, 28, tzinfo=UTC)
    read = read_candles(frame, "x")
    assert (len(read.frame), read.timeframe) == (400 - 24, "1h")
    np.testing.assert_array_equal(read.rows, [*range(57), *range(81, 400)])
    assert any("24 candles of February 2018 that open off the grid" in note for note in read.notes)
    assert Series.from_frame(frame).segments[-1] == 1  # a hole, and nothing is computed across it
    elsewhere = frame.with_columns(pl.col("open_time") + pl.duration(days=7))
    with pytest.raises(ModelError, match="2018-02-16 09:28:00 UTC in row 57 is not on the UTC grid"):
        Series.from_frame(elsewhere)


@pytest.fixture(scope="module")
def model():
    return train_fleet([Series.from_frame(candles(700))], "robust-har", "smoke", seeds=[1], device="cpu")[0]


def test_freqtrades_table_with_texts_off_grid_candles_or_the_newest_first(model):
    frame = pandas_of(candles(900)).rename(columns={"open_time": "date"})
    plain = add_forecasts(frame, "BTC/USDT", "1h", model)
    assert plain["cpb_q50_1"].notna().any()
    texts = add_forecasts(frame.astype(dict.fromkeys(PRICES, str)), "BTC/USDT", "1h", model)
    pd.testing.assert_frame_equal(texts.filter(like="cpb_"), plain.filter(like="cpb_"))
    with pytest.raises(ModelError, match="close 'soon' in row 5 is not a number"):
        add_forecasts(
            frame.assign(close=["soon" if row == 5 else "1.5" for row in range(900)]), "BTC/USDT", "1h", model
        )
    whole = frame.assign(**{n: [f"{v * 1000:,.0f}" for v in frame[n]] for n in PRICES})
    with pytest.raises(ModelError, match=r"can be read as .*decimal='point'"):
        add_forecasts(whole, "BTC/USDT", "1h", model)
    said = add_forecasts(
        whole.rename(columns={"close": "last"}),
        "BTC/USDT",
        "1h",
        model,
        decimal="point",
        columns={"close": "last"},
    )
    assert said["cpb_q50_1"].notna().any()
    # each forecast stands in the row of its candle
    backwards = add_forecasts(frame[::-1], "BTC/USDT", "1h", model)
    pd.testing.assert_frame_equal(backwards[::-1], plain)
    late = pandas_of(february(900)).rename(columns={"open_time": "date"})
    early = {**model.config, "known_until": "2018-02-08T00:00:00+00:00"}
    out = add_forecasts(late, "BTC/USDT", "1h", replace(model, config=early))
    known = out["cpb_q50_1"].notna()
    assert not known[57 : 81 + 160].any()
    assert known[81 + 170 :].all()


def test_the_line_of_a_file_and_the_row_of_a_frame(tmp_path):
    frame = candles(60).with_columns(pl.col("open_time").dt.epoch("s"))
    broken = frame.with_columns(low=pl.when(pl.int_range(pl.len()) == 49).then(1e9).otherwise("low"))
    lines = broken[::-1].write_csv().splitlines()
    path = tmp_path / "x.csv"
    for more in (0, 3):
        path.write_text("\n".join(["# about"] * more + lines[:5] + [",,,,,"] + lines[5:]))
        with pytest.raises(ModelError, match=rf"row 10 \(line {13 + more}\) is not a valid candle"):
            Series.from_frame(path)
    with pytest.raises(ModelError, match="row 10 is not a valid candle"):
        Series.from_frame(broken[::-1])


@pytest.mark.parametrize("value", [True, [1.5], {"a": 1.5}, b"1.5"])
def test_a_column_of_another_type_is_named(value):
    frame = candles(40).with_columns(close=pl.Series([value] * 40))
    with pytest.raises(ModelError, match=r"close is of the type .*, which holds no numbers"):
        Series.from_frame(frame)


def test_texts_as_categories_are_texts():
    frame = candles(40)
    texts = [pl.col(name).cast(pl.String).cast(pl.Categorical) for name in PRICES]
    times = pl.col("open_time").dt.strftime("%Y-%m-%dT%H:%M:%SZ").cast(pl.Categorical)
    read, wanted = (Series.from_frame(table) for table in (frame.with_columns(times, *texts), frame))
    np.testing.assert_array_equal(read.prices, wanted.prices)
    np.testing.assert_array_equal(read.times, wanted.times)


@pytest.mark.parametrize("newest_first", [False, True])
def test_a_candle_out_of_order_is_named_in_either_direction(tmp_path, newest_first):
    frame = candles(60)
    rows = pl.concat([frame[:30], frame[29:]])
    wrong = pl.concat([frame[:30], frame[31:40], frame[30:31], frame[40:]])
    for table, words in ((rows, "twice"), (wrong, "is earlier than the candle before")):
        table = table[::-1] if newest_first else table
        with pytest.raises(ModelError, match=words) as refused:
            Series.from_frame(table)
        assert re.search(r"in row (30|31|39|40|29|20|21)\b", str(refused.value))
    table.write_csv(path := tmp_path / "x.csv")
    with pytest.raises(ModelError, match=r"\(line \d+\) is earlier"):
        Series.from_frame(path)


def test_times_without_their_hours_and_coins_in_a_column_of_another_name():
    frame = candles(96)
    days = frame.with_columns(pl.col("open_time").dt.strftime("%Y-%m-%dT00:00:00Z"))
    two = pl.concat([frame.with_columns(asset=pl.lit(name)) for name in ("BTC", "ETH")]).sort("open_time")
    for table, count in ((days, 4), (two, 96)):
        with pytest.raises(
            ModelError, match=rf"have {count} different times, .* lost digits.*--columns symbol=NAME"
        ):
            Series.from_frame(table)
    with pytest.raises(ModelError, match="column asset names BTC, ETH"):
        Series.from_frame(two, columns={"symbol": "asset"})


@pytest.mark.parametrize("digits", [5, 6])
def test_times_that_a_spreadsheet_has_cut(tmp_path, digits):
    frame = candles(60)
    cut = [f"{value:.{digits}E}" for value in frame["open_time"].dt.epoch("ms")]
    table = frame.with_columns(open_time=pl.Series(cut))
    table.write_csv(tmp_path / "x.csv")
    for source in (tmp_path / "x.csv", table, table.with_columns(pl.col("open_time").cast(pl.Float64))):
        with pytest.raises(ModelError, match=r"the times have lost digits, .* export them again"):
            Series.from_frame(source, timeframe="1h")
    whole = frame.with_columns(open_time=pl.Series([f"{v:.12E}" for v in frame["open_time"].dt.epoch("ms")]))
    assert len(Series.from_frame(whole)) == 60


@pytest.mark.parametrize(
    ("begin", "kind"), [(b"PK\x03\x04", "zip"), (b"PAR1", "parquet"), (b"\x1f\x8b", "gzip")]
)
def test_a_file_that_is_no_text_is_named_with_the_kinds_that_are_read(tmp_path, begin, kind):
    path = tmp_path / "BTCUSDT-1h.csv"
    path.write_bytes(begin + bytes(range(256)))
    with pytest.raises(
        ModelError, match=rf"x.csv|BTCUSDT-1h.csv is .*{kind}.*\.csv, \.csv\.gz, \.parquet, \.feather"
    ):
        Series.from_frame(path)


def test_a_line_with_more_cells_than_the_header(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("date,open,high,low,close\n2024-01-01,1.5,1.5,1.5,1.5\n2024-01-02,1,5,1.5,1.5,1.5\n")
    with pytest.raises(ModelError, match="line 3 has 6 cells and the header 5"):
        Series.from_frame(path)


def test_the_open_time_in_the_letters_of_other_programs_goes_before_a_timestamp():
    frame = candles(60)
    times = frame["open_time"]
    named = frame.drop("open_time").with_columns(openTime=times, timestamp=times + timedelta(hours=1))
    assert (Series.from_frame(named).times == times.to_physical().to_numpy()).all()


@pytest.mark.parametrize("name", ["Volume USDT", "volume_usd", "volumeQuote", "Volume MA", "volume_24h"])
def test_an_amount_that_is_not_of_the_coin_is_no_volume(name):
    series = Series.from_frame(candles(60).rename({"volume": name}))
    assert "log_volume_change" not in series.names


@pytest.mark.parametrize("name", ["ticker", "instId", "coin", "Product ID"])
def test_coins_after_one_another_in_a_column_of_another_name_are_not_joined(name):
    frame = candles(60)
    which = pl.Series(name, ["BTC-USD"] * 30 + ["ETH-USD"] * 30)
    with pytest.raises(ModelError, match=f"column {name} names BTC-USD, ETH-USD"):
        Series.from_frame(frame.hstack([which]))


@pytest.mark.parametrize(
    ("text", "symbol"),
    [
        ("BINANCE:BTCUSDT", "BTCUSDT"),
        ("X:BTC-USD", "BTCUSD"),
        ("BTC/USDT:USDT", "BTCUSDT"),
        ("BTC/USD:BTC-241227", "BTCUSD"),
        ("NASDAQ:AAPL", "NASDAQ:AAPL"),
    ],
)
def test_symbols_with_an_exchange_or_a_settlement(text, symbol):
    assert clean_symbol(text) == symbol


def test_an_index_of_symbols_and_times_and_one_of_texts():
    frame = pandas_of(candles(60)).set_index("open_time")
    both = pd.concat({"BTC": frame, "ETH": frame * 2}, names=["symbol", "time"])
    assert len(Series.from_frame(both.loc[["BTC"]])) == 60
    with pytest.raises(ModelError, match="column symbol names BTC, ETH"):
        Series.from_frame(both)
    texts = frame.set_axis([time.isoformat() for time in frame.index])
    assert (Series.from_frame(texts).times == Series.from_frame(frame).times).all()


@pytest.mark.parametrize("kind", [pl.Datetime("us"), pl.Duration("us"), pl.Time])
def test_times_are_no_numbers(kind):
    with pytest.raises(ModelError, match="volume is of the type"):
        Series.from_frame(candles(60).with_columns(pl.col("volume").cast(pl.Int64).cast(kind)))


def test_one_column_is_no_table():
    frame = candles(60)
    for column in (frame["close"], pandas_of(frame)["close"]):
        with pytest.raises(ModelError, match="a Series is not a table"):
            Series.from_frame(column)


@pytest.mark.parametrize("forms", [("%Y-%m-%d %H:%M:%S+00:00", None), ("%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M")])
def test_two_columns_of_texts_that_differ_are_not_chosen_between(tmp_path, forms):
    frame = candles(60)
    opens, other = frame["open_time"], frame["open_time"] + timedelta(hours=1)
    first, second = forms
    stamps = opens.dt.strftime(second) if second else opens.dt.epoch("ms")
    for times, is_refused in ((other, True), (opens, False)):
        table = frame.drop("open_time").with_columns(datetime=times.dt.strftime(first), date=stamps)
        table.write_csv(path := tmp_path / "x.csv")
        if is_refused:
            with pytest.raises(ModelError, match=r"the columns .* differ, first in row 0"):
                Series.from_frame(path)
        else:
            assert len(Series.from_frame(path)) == 60
    day = frame.with_columns(date=opens.dt.strftime("%Y-%m-%d"), datetime=opens.dt.strftime("%Y-%m-%d %H:%M"))
    day.drop("open_time").write_csv(path)
    assert len(Series.from_frame(path)) == 60
