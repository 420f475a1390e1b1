"""How a table is read where it does not tell: said once, remembered with its source, else refused."""

import json

import polars as pl
import pytest

from schemas.errors import UsageError
from schemas.forecasting import ForecastSpec
from schemas.run import RunSpec
from schemas.scope import IngestSpec, ScopeSpec
from tasks.market.ingest import update_store
from tasks.market.klines import read_klines
from tasks.verify.verification import verify_all
from tests.tools.market_tables import hours
from tests.tools.market_tools import key

PRICES = ("open", "high", "low", "close")


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("CPB_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def grouped(path, rows=100):
    """A table whose prices are all groups of three: 98,765."""
    table = hours(rows).with_columns((pl.col(n) * 10).round(0) for n in PRICES)
    texts = table.with_columns(
        *(pl.col(n).map_elements(lambda value: f"{value:,.0f}", pl.String) for n in PRICES),
        volume=pl.lit("12"),
    )
    assert texts["open"].str.contains(",").all()
    texts.write_csv(path)
    return table


def renamed(path):
    names = {"open_time": "Date", **{n: n.upper()[0] for n in PRICES}, "volume": "Amount"}
    hours().rename(names).write_csv(path)
    return "time=Date,open=O,high=H,low=L,close=C,volume=Amount"


def test_the_decimal_mark_is_asked_for_said_and_remembered(tmp_path, store):
    path = tmp_path / "BTCUSDT-1h.csv"
    table = grouped(path)
    with pytest.raises(
        UsageError,
        match=r"open '\d+,\d{3}' in row 0 \(line 2\) can be read as .*--decimal point or --decimal",
    ):
        IngestSpec(source=str(path))
    with pytest.raises(UsageError, match="decimal 'dot' is unknown: choose point or comma"):
        IngestSpec(source=str(path), decimal="dot")
    assert not store.exists()
    spec = IngestSpec(source=str(path), decimal="point")
    assert update_store(spec.scope).exit == 0
    assert read_klines(store, key(market="own"))["close"].to_list() == table["close"].to_list()
    for kind in (ScopeSpec, IngestSpec, ForecastSpec, RunSpec):
        later = kind(source=str(path))
        assert (later.decimal, later.scope.reading.decimal) == ("point", "point")
        assert kind.model_validate(later.model_dump()) == later
    assert update_store(IngestSpec(source=str(path)).scope).exit == 0
    (tmp_path / "copy").mkdir()
    grouped(tmp_path / "copy/BTCUSDT-1h.csv")
    with pytest.raises(UsageError, match="can be read as"):
        IngestSpec(source=str(tmp_path / "copy"))


def test_the_other_mark_replaces_the_first_and_what_is_remembered_is_said(tmp_path, store):
    path = tmp_path / "BTCUSDT-1h.csv"
    grouped(path)
    update_store(IngestSpec(source=str(path), decimal="point").scope)
    hours().with_columns(
        pl.col(n).map_elements(lambda value: f"{value:.8f}".replace(".", ","), pl.String)
        for n in (*PRICES, "volume")
    ).write_csv(path)
    with pytest.raises(
        UsageError,
        match=r"is not a number with a decimal point: give .*comma or none.*--decimal point is remem",
    ):
        IngestSpec(source=str(path))
    assert IngestSpec(source=str(path), decimal="comma").decimal == "comma"


def test_columns_are_said_and_remembered(tmp_path, store):
    path = tmp_path / "BTCUSDT-1h.csv"
    columns = renamed(path)
    with pytest.raises(UsageError, match=r"the column open is missing .*--columns open=NAME"):
        IngestSpec(source=str(path))
    update_store(IngestSpec(source=str(path), columns=columns).scope)
    assert read_klines(store, key(market="own"))["volume"].to_list() == hours()["volume"].to_list()
    assert json.loads((store / "own/sources.json").read_text()) == {
        str(path): {"columns": columns, "decimal": None}
    }
    assert IngestSpec(source=str(path)).columns == columns
    assert verify_all(store, ("own",)).damaged == []
    (store / "own/sources.json").write_text("{")
    (damage,) = verify_all(store, ("own",)).damaged
    assert (damage.path, damage.command) == ("own/sources.json", f"rm {store}/own/sources.json")
    with pytest.raises(UsageError, match=r"sources.json is damaged: remove it, and give --columns"):
        IngestSpec(source=str(path))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"columns": "close"}, "columns 'close' is not NAME=COLUMN"),
        ({"columns": "close=A,close=B"}, "each name once"),
        ({"columns": "price=Last"}, "'price' is unknown: choose one of time, open"),
        ({"columns": "close=Last"}, r"there is no column called 'Last', given as close \(columns: open_time"),
        ({"decimal": "dot"}, "decimal 'dot' is unknown: choose point or comma"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, options, words):
    hours().write_csv(tmp_path / "BTCUSDT-1h.csv")
    with pytest.raises(UsageError, match=words):
        IngestSpec(source=str(tmp_path), **options)


@pytest.mark.parametrize("source", [None, "sim", "https://example.com/x", "FOLDER"])
@pytest.mark.parametrize("option", [{"decimal": "point"}, {"columns": "close=C"}])
def test_without_a_table_they_say_nothing(tmp_path, source, option):
    source = str(tmp_path) if source == "FOLDER" else source
    with pytest.raises(UsageError, match=r"says how a table is read .*and the source is none"):
        IngestSpec(source=source, **option)


@pytest.mark.parametrize(
    ("name", "options", "series"),
    [
        ("BTC-USD.csv", {"coins": "BTC"}, "own-BTCUSD-1h"),
        ("BTC-USD.csv", {}, "own-BTCUSD-1h"),
        ("Foo BTC-USD bar.csv", {"coins": "BTC"}, "own-BTCUSD-1h"),
        ("XBTUSD_60.csv", {}, "own-XBTUSD-1h"),
        ("my export.csv", {"coins": "BTCEUR"}, "own-BTCEUR-1h"),
        ("my export.csv", {"coins": "BTCEUR", "timeframes": "1h"}, "own-BTCEUR-1h"),
        ("BTCUSDT_1M.csv", {"coins": "BTC", "timeframes": "1h"}, "own-BTCUSDT-1h"),
    ],
)
def test_the_series_of_a_file_by_its_name_or_the_command(tmp_path, name, options, series):
    hours().write_csv(tmp_path / name)
    assert [s.name for s in IngestSpec(source=str(tmp_path / name), **options).scope.series] == [series]


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        (
            "BTCUSDT_1M.csv",
            {},
            "'1M' in its name is not understood: say which .*--coins BTCUSDT --timeframes 1h",
        ),
        ("Copy of ETHUSDT-1h.csv", {}, "'Copy of' in its name is not understood"),
        ("Foo_ETHUSDT_1h.csv", {"coins": "BTC"}, "holds ETHUSDT and no BTC"),
        ("BTC-USD.csv", {"coins": "BTCUSDT"}, "holds BTCUSD and no BTCUSDT"),
        ("candles.csv", {}, "its name tells no symbol"),
    ],
)
def test_another_pair_or_an_unknown_part_is_refused(tmp_path, name, options, words):
    hours().write_csv(tmp_path / name)
    with pytest.raises(UsageError, match=words):
        IngestSpec(source=str(tmp_path / name), **options)


def test_a_name_and_a_column_that_contradict_each_other(tmp_path):
    path = tmp_path / "BTCUSDT-1h.csv"
    hours().with_columns(symbol=pl.lit("ETH/USDT")).write_csv(path)
    with pytest.raises(UsageError, match="is called BTCUSDT, and its column symbol says ETHUSDT: rename it"):
        IngestSpec(source=str(path))
    assert IngestSpec(source=str(path), coins="ETH").coins == "ETHUSDT"


def test_a_coin_with_two_pairs_in_a_folder_is_asked_for(tmp_path):
    for name in ("BTCUSD-1h.csv", "BTCEUR-1h.csv"):
        hours().write_csv(tmp_path / name)
    with pytest.raises(UsageError, match=r"coins 'BTC': .* holds BTCEUR, BTCUSD; name one of these"):
        IngestSpec(source=str(tmp_path), coins="BTC")
    assert IngestSpec(source=str(tmp_path), coins="BTCEUR").coins == "BTCEUR"


def test_two_coins_in_one_file_are_split_and_rows_are_those_of_the_file(tmp_path):
    path, both = tmp_path / "all.csv", []
    for row, candle in enumerate(hours(40).rows(named=True)):
        wrong = candle | {"low": 1e9} if row == 30 else candle
        both += [
            candle | {"symbol": "BTCUSDT", "interval": "1h"},
            wrong | {"symbol": "ETHUSDT", "interval": "1h"},
        ]
    pl.DataFrame(both).write_csv(path)
    assert IngestSpec(source=str(path), coins="BTC").coins == "BTCUSDT"
    assert update_store(IngestSpec(source=str(path), coins="BTC").scope).exit == 0
    with pytest.raises(UsageError, match=r"ETHUSDT: row 61 \(line 63\) is not a valid candle"):
        update_store(IngestSpec(source=str(path)).scope)


def test_one_coin_in_two_ways_of_writing_is_one_series(tmp_path):
    half = pl.int_range(pl.len()) < 50
    table = hours().with_columns(symbol=pl.when(half).then(pl.lit("BTC/USDT")).otherwise(pl.lit("btcusdt")))
    table.write_csv(tmp_path / "all.csv")
    report = update_store(IngestSpec(source=str(tmp_path / "all.csv")).scope)
    assert [(entry.series.name, entry.rows) for entry in report.series] == [("own-BTCUSDT-1h", 100)]


def test_a_single_candle_takes_its_timeframe_from_the_command(tmp_path):
    hours()[:1].write_csv(tmp_path / "BTCUSDT.csv")
    with pytest.raises(UsageError, match="one candle has no known length"):
        IngestSpec(source=str(tmp_path / "BTCUSDT.csv"))
    spec = IngestSpec(source=str(tmp_path / "BTCUSDT.csv"), timeframes="1h")
    assert (spec.timeframes, update_store(spec.scope).exit) == ("1h", 0)


def test_the_kinds_that_are_read_are_in_the_sentence(tmp_path):
    hours().write_csv(tmp_path / "BTCUSDT-1h.tsv", separator="\t")
    for source in (tmp_path / "BTCUSDT-1h.tsv", tmp_path / "BTCUSDT-1h.xlsx"):
        with pytest.raises(UsageError) as refused:
            IngestSpec(source=str(source))
        assert all(word in str(refused.value) for word in (source.name, ".csv, .csv.gz, .parquet, .feather"))
    hours().write_csv(tmp_path / "both.csv")
    (tmp_path / "both").mkdir()
    (tmp_path / "both.csv").rename(tmp_path / "both/ETHUSDT-1h.csv")
    hours().write_csv(tmp_path / "both/BTCUSDT-1h.tsv", separator="\t")
    report = update_store(IngestSpec(source=str(tmp_path / "both")).scope)
    assert any("BTCUSDT-1h.tsv not read: tables are .csv" in note for note in report.notes)
    with pytest.raises(UsageError, match=r"'BTCUSDT-1h\.tsv'"):
        update_store(IngestSpec(source=str(tmp_path), coins="BTC", timeframes="1h").scope)
    with pytest.raises(UsageError) as refused:
        IngestSpec(source="user:secret@host/x")
    assert "secret" not in str(refused.value)
