"""Forms of candle tables that people have, read by `--source` and `Series.from_frame` like the plain table."""

import gzip

import numpy as np
import pandas as pd
import polars as pl
import pytest

from cpbmodels import ModelError, Series
from schemas.errors import UsageError
from schemas.reading import Reading
from schemas.scope import IngestSpec
from schemas.tables import tables_of
from tasks.market.ingest import update_store
from tasks.market.klines import read_klines
from tests.tools.market_tables import OWN, hours

NAMES = ("open", "high", "low", "close", "volume")


def lines(time="%Y-%m-%d %H:%M", separator=",", decimal=".", order=NAMES, unit=""):
    """The rows of the plain table as texts."""
    times = hours()["open_time"]
    stamps = times.dt.epoch(unit).cast(str) if unit else times.dt.strftime(time)
    prices = [[f"{value:.8f}".replace(".", decimal) for value in hours()[name]] for name in order]
    return [separator.join(row) for row in zip(stamps, *prices, strict=True)]


def mixed():
    """Newest first, milliseconds in the newer half and seconds in the older, as CryptoDataDownload's."""
    newer, older = lines(unit="ms")[50:], lines(unit="s")[:50]
    return (older + newer)[::-1]


HEAD = "open,high,low,close,volume"
FORMS = {
    "banner, newest first, ms and s": (
        "BTCUSDT-1h.csv",
        ["https://www.example.com/data", f"unix,{HEAD}", *mixed()],
    ),
    "a title and a blank line": (
        "BTCUSDT-1h.csv",
        ["Bitcoin, hourly", "", f"Timestamp,{HEAD}", *lines(unit="us")],
    ),
    "volume of coin and quote": (
        "BTCUSDT-1h.csv",
        ["Unix,open,high,low,close,Volume BTC,Volume USDT", *(f"{row},1" for row in lines(unit="ms"))],
    ),
    "time with an offset": ("BTCUSDT-1h.csv", [f"time,{HEAD}", *lines("%Y-%m-%dT%H:%M:%S+00:00")]),
    "Z and fractions": ("BTCUSDT-1h.csv", [f"Datetime,{HEAD}", *lines("%Y-%m-%dT%H:%M:%S.000Z")]),
    "slashes": ("BTCUSDT-1h.csv", [f"date,{HEAD}", *lines("%Y/%m/%d %H:%M:%S")]),
    "TradingView's name": ("BINANCE_BTCUSDT, 60.csv", [f"time,{HEAD}", *lines(unit="s")]),
    "a tool's name, and the coin asked for": ("Bitstamp_BTCUSDT_1h.csv", [f"time,{HEAD}", *lines(unit="s")]),
    "no name, and the coin asked for": ("candles (1).csv", [f"time,{HEAD}", *lines(unit="s")]),
    "yfinance": (
        "BTCUSDT-1h.csv",
        [
            "Price,Close,High,Low,Open,Volume",
            "Ticker" + ",BTC-USD" * 5,
            "Datetime,,,,,",
            *lines("%Y-%m-%d %H:%M:%S+00:00", order=("close", "high", "low", "open", "volume")),
        ],
    ),
    "yfinance by ticker": (
        "BTCUSDT-1h.csv",
        ["Ticker" + ",BTC-USD" * 5, f"Price,{HEAD}", "Date,,,,,", *lines("%Y-%m-%d %H:%M:%S")],
    ),
    "semicolons and decimal commas": (
        "BTCUSDT-1h.csv",
        [f"date;{HEAD}".replace(",", ";"), *lines(separator=";", decimal=",")],
    ),
    "MetaTrader": (
        "BTCUSDT-1h.csv",
        ["<DATE>\t<TIME>\t<OPEN>\t<HIGH>\t<LOW>\t<CLOSE>\t<VOLUME>", *lines("%Y.%m.%d\t%H:%M:%S", "\t")],
    ),
    "blank last lines": ("BTCUSDT-1h.csv", [f"open_time,{HEAD}", *lines(unit="ms"), "", ",,,,,", ""]),
    "MetaTrader, days without separators": (
        "BTCUSDT-1h.csv",
        ["date,time,open,high,low,close,volume", *lines("%Y%m%d,%H:%M")],
    ),
    "short names": ("BTCUSDT-1h.csv", ["t,o,h,l,c,v", *lines(unit="ms")]),
    "spaces behind semicolons": (
        "BTCUSDT-1h.csv",
        [f"date; {HEAD}".replace(",", "; "), *lines(separator="; ", decimal=",")],
    ),
    "a name that is no symbol": ("EXPORT, 2025.csv", [f"time,{HEAD}", *lines(unit="s")]),
    "nanoseconds": ("BTCUSDT-1h.csv", [f"t|{HEAD}".replace(",", "|"), *lines(unit="ns", separator="|")]),
    "Binance's own": ("BTCUSDT-1h.csv", [f"{row},1,2,3,1,2,0" for row in lines(unit="ms")]),
}


def written(folder, name, rows, encoding="utf-8-sig", end="\r\n"):
    path = folder / name
    path.write_bytes(end.join([*rows, ""]).encode(encoding))
    return path


@pytest.mark.parametrize("form", FORMS)
def test_each_form_gives_the_plain_tables_candles_both_ways(tmp_path, form):
    path = written(tmp_path, *FORMS[form])
    plain = hours().select("open_time", *NAMES).with_columns(pl.col(*NAMES).round(8))
    spec = IngestSpec(source=str(path), coins="BTC", timeframes="1h")
    report = update_store(spec.scope.model_copy(update={"home": tmp_path / "home"}))
    assert read_klines(tmp_path / "home", OWN("BTCUSDT")).select(plain.columns).equals(plain)
    assert report.exit == 0
    assert any("before its header" in note for note in report.notes) == (
        form in ("banner, newest first, ms and s", "a title and a blank line", "yfinance by ticker")
    )
    assert any("newest candle first" in note for note in report.notes) == ("newest first" in form)
    series = Series.from_frame(path, "BTCUSDT")
    assert series.timeframe == "1h"
    np.testing.assert_array_equal(series.times, plain["open_time"].dt.epoch("us"))
    np.testing.assert_array_equal(series.prices, plain.select(NAMES[:4]))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8"])
def test_encodings(tmp_path, encoding):
    path = written(tmp_path, "BTCUSDT-1h.csv", [f"time,{HEAD}", *lines(unit="s")], encoding, "\n")
    assert len(Series.from_frame(path)) == 100
    packed = tmp_path / "BTCUSDT-1h.csv.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert len(Series.from_frame(packed)) == 100


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], "no line in it"),
        ([f"time,{HEAD}"], "no candle in it"),
        ([f"{row}" for row in lines(unit="s")], "no header line"),
        ([f"time,{HEAD}", *lines("%d.%m.%Y %H:%M")], r"'30.01.2024 00:00' in row 0 \(line 2\) is not a time"),
        (
            [f"time,{HEAD}", *lines()[:3], "soon,1,1,1,1,1"],
            r"'soon' in row 3 \(line 5\) is not a time like those before",
        ),
        (
            [f"time,{HEAD}", *lines(unit="s")[:3], "Source: example.com"],
            r"'Source: example.com' in row 3 \(line 5\) is not a time",
        ),
        (lines("%Y-%m-%d %H:%M"), "no header line"),
        (["<html>", "<h1>404</h1>"], "is an HTML page and no table"),
        (
            [
                "Price,Close,Close,High,High,Low,Low,Open,Open",
                "Ticker,A,B,A,B,A,B,A,B",
                "Date,,,,,,,,",
                "2024-01-30,1,1,1,1,1,1,1,1",
            ],
            "several tickers",
        ),
    ],
)
def test_what_cannot_be_read_is_one_sentence_both_ways(tmp_path, rows, words):
    path = written(tmp_path, "BTCUSDT-1h.csv", rows)
    with pytest.raises(ModelError, match=words) as from_python:
        Series.from_frame(path)
    with pytest.raises(UsageError, match=words) as command:
        update_store(
            IngestSpec(source=str(path), timeframes="1h").scope.model_copy(update={"home": tmp_path / "home"})
        )
    for sentence in (str(from_python.value), str(command.value)):
        assert "\n" not in sentence
    assert "BTCUSDT-1h.csv" in str(command.value)


@pytest.mark.parametrize(("name", "coins"), [("BTCUSDT-1h.csv", "BTCUSD"), ("WETHUSDT-1h.csv", "ETH")])
def test_a_coin_whose_letters_are_in_the_name_is_not_that_of_the_file(tmp_path, name, coins):
    path = written(tmp_path, name, [f"time,{HEAD}", *lines(unit="s")])
    with pytest.raises(UsageError, match=f"and no {coins}"):
        IngestSpec(source=str(path), coins=coins)


@pytest.mark.parametrize(
    ("name", "coins", "symbol"),
    [
        ("prices.csv", "BTC-USD", "BTCUSD"),
        ("Bitstamp_BTC_USDT_1h.csv", "BTC", "BTCUSDT"),
        ("BTC-1h.csv", "BTC", "BTC"),
        ("BTCUSDT60.csv", "BTCUSDT", "BTCUSDT"),
    ],
)
def test_the_symbol_of_one_file(tmp_path, name, coins, symbol):
    path = written(tmp_path, name, [f"time,{HEAD}", *lines(unit="s")])
    assert IngestSpec(source=str(path), coins=coins).coins == symbol


@pytest.mark.parametrize("name", ["BTCUSDT-15m.csv", "BINANCE_BTCUSDT, 15.csv"])
def test_a_timeframe_that_contradicts_the_times_is_refused(tmp_path, name):
    path = written(tmp_path, name, [f"time,{HEAD}", *lines(unit="s")])
    spec = IngestSpec(source=str(path), timeframes="15m")
    with pytest.raises(UsageError, match=r"1:00:00 and more apart, so they are not those of 15m"):
        update_store(spec.scope.model_copy(update={"home": tmp_path / "home"}))
    with pytest.raises(ModelError, match="not those of 15m"):
        Series.from_frame(path, timeframe="15m")


def test_files_that_are_damaged_or_hold_nothing(tmp_path):
    packed = bytearray(gzip.compress("\n".join(lines()).encode()))
    packed[40:60] = b"\xff" * 20
    for name, content, words in (
        ("BTCUSDT-1h.csv.gz", bytes(packed), "cannot be read"),
        ("table.csv", f"symbol,time,{HEAD}\n".encode(), "no candle in it"),
        ("BTCUSDT-1h.csv", "© Börse\n".encode("latin-1") + b"\xff\x00", "no header line"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UsageError, match=words):
            update_store(
                IngestSpec(source=str(tmp_path / name)).scope.model_copy(update={"home": tmp_path / "h"})
            )
    with pytest.raises(UsageError, match="too long"):
        IngestSpec(source=str(tmp_path / f"{'x' * 300}-1h.csv"))


def test_tables_that_pandas_read_without_their_form(tmp_path):
    """All columns are listed, and a second ticker is never passed over."""
    path = written(tmp_path, "x.csv", ["date;open;high;low;close", "soon;1,5;1,5;1,5;1,5"])
    with pytest.raises(ModelError, match=r"columns: date;open;high;low;close\)"):
        Series.from_frame(pd.read_csv(path, sep="#"))
    rows = ["Price,Close,Close,High,High,Low,Low,Open,Open", "Ticker" + ",A,B" * 4, "Datetime" + "," * 8]
    written(tmp_path, "x.csv", [*rows, "2024-01-30 00:00:00+00:00" + ",1" * 8])
    with pytest.raises(ModelError, match="several tickers"):
        Series.from_frame(pd.read_csv(path))
    frame = hours().with_columns(date=pl.lit("2024-01-30"), unix=pl.col("open_time").dt.epoch("s"))
    assert len(Series.from_frame(frame.drop("open_time"))) == 100


def test_an_exchange_before_the_symbol_and_a_name_that_tells_the_currency(tmp_path):
    """tvDatafeed writes BINANCE:BTCUSDT; a column of coins lies in a file that is named by the pair."""
    rows = [f"BINANCE:{name},{row}" for name in ("BTCUSDT", "ETHUSDT") for row in lines(unit="s")]
    both = [f"symbol,time,{HEAD}", *rows]
    (tmp_path / "two.csv").write_text("\n".join(both))
    assert set(tables_of(str(tmp_path / "two.csv")).series) == {("BTCUSDT", "1h"), ("ETHUSDT", "1h")}
    coins = [f"coin,time,{HEAD}"] + [f"ETH,{row}" for row in lines(unit="s")]
    (tmp_path / "ETHEUR-1h.csv").write_text("\n".join(coins))
    assert set(tables_of(str(tmp_path / "ETHEUR-1h.csv")).series) == {("ETHEUR", "1h")}
    (tmp_path / "x.csv").write_text("\n".join(both).replace("BINANCE:BTCUSDT", "NYSE:SPY"))
    with pytest.raises(UsageError, match="calls its symbol 'NYSE:SPY'"):
        tables_of(str(tmp_path / "x.csv"))


def test_columns_whose_names_hold_a_comma():
    assert Reading("time=Date,close=Price, USD,volume=Vol.").roles == {
        "time": "Date",
        "close": "Price, USD",
        "volume": "Vol.",
    }


def test_forms_of_other_programs_are_read_as_the_plain_table(tmp_path):
    stamps = hours()["open_time"]
    prices = [row.split(",", 1)[1] for row in lines()]

    def rows(times):
        return [f"{time},{row}" for time, row in zip(times, prices, strict=True)]

    digits = stamps.dt.strftime("%Y%m%d%H%M")
    grouped = [f'"{count:,}"' for count in stamps.dt.epoch("ms")]
    yfinance = [
        ",BTC-USD" * 5,
        f",{HEAD}",
        "Datetime,,,,,",
        *rows(stamps.dt.strftime("%Y-%m-%d %H:%M:%S+00:00")),
    ]
    bybit = [f"interval,time,{HEAD}", *(f"60,{row}" for row in lines(unit="s"))]
    forms = {
        "digits": "\n".join([f"time,{HEAD}", *rows(digits)]).encode(),
        "seconds as digits": "\n".join([f"time,{HEAD}", *rows(digits + "00")]).encode(),
        "grouped": "\n".join([f"time,{HEAD}", *rows(grouped)]).encode(),
        "yfinance before 0.2.51": "\n".join(yfinance).encode(),
        "no mark of UTF-16": "\n".join([f"time,{HEAD}", *lines(unit="s")]).encode("utf-16-le"),
        "minutes as a timeframe": "\n".join(bybit).encode(),
    }
    for content in forms.values():
        (path := tmp_path / "BTCUSDT-1h.csv").write_bytes(content)
        read = tables_of(str(path)).series["BTCUSDT", "1h"].read.frame
        assert read["open_time"].equals(
            stamps.dt.replace_time_zone("UTC") if stamps.dtype.time_zone is None else stamps
        )
        for name in NAMES:
            assert np.allclose(read[name], hours()[name], rtol=0, atol=1e-8)


def test_days_of_digits(tmp_path):
    rows = ["20240229,1,2,1,1,1", "20240301,1,2,1,1,1", "20240302,1,2,1,1,1"]
    (path := tmp_path / "BTCUSDT-1d.csv").write_text("\n".join([f"date,{HEAD}", *rows]))
    read = tables_of(str(path)).series["BTCUSDT", "1d"].read.frame
    assert read["open_time"].dt.strftime("%m-%d").to_list() == ["02-29", "03-01", "03-02"]


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b'[{"t": 1, "open": 2, "high": 3}]', "JSON"),
        (b"[[1704067200000, 1, 2]]", "JSON"),
        (b"<!DOCTYPE html><html>", "an HTML page"),
        (b"\x80\x04\x95\x00\x00", "bytes that are no text"),
    ],
)
def test_texts_of_another_kind_are_named(tmp_path, content, kind):
    (path := tmp_path / "BTCUSDT-1h.csv").write_bytes(content)
    with pytest.raises(UsageError, match=f"is (of )?{kind} and no table"):
        tables_of(str(path))


def test_times_that_a_spreadsheet_with_decimal_commas_has_cut(tmp_path):
    rows = [f"{time:.5E}".replace(".", ",") + ";1;2;1;1;1" for time in hours()["open_time"].dt.epoch("ms")]
    (path := tmp_path / "BTCUSDT-1h.csv").write_text("\n".join([f"time,{HEAD}".replace(",", ";"), *rows]))
    with pytest.raises(UsageError, match="the times have lost digits"):
        _ = tables_of(str(path)).series["BTCUSDT", "1h"].read


def test_a_volume_under_another_name_is_told(tmp_path):
    rows = [f"ts,{HEAD}".replace("volume", "vol"), *lines(unit="s")]
    (tmp_path / "BTCUSDT-1h.csv").write_text("\n".join(rows))
    notes = tables_of(str(tmp_path)).series["BTCUSDT", "1h"].read.notes
    assert any("'vol': say which is meant with --columns volume=vol" in note for note in notes)


def test_a_decimal_mark_that_is_none_is_named_also_where_the_table_needs_one(tmp_path):
    rows = [
        f"time,{HEAD}",
        *(f'{1704067200 + 3600 * row},"3,000","3,100","2,900","3,050",1' for row in range(3)),
    ]
    (path := tmp_path / "BTCUSDT-1h.csv").write_text("\n".join(rows))
    with pytest.raises(UsageError, match="decimal 'dot' is unknown: choose point or comma"):
        IngestSpec(source=str(path), decimal="dot")
