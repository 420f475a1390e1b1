"""A table of one's own as source: the same candles in the store as from Binance's layout, whatever kind of file."""

import re
from datetime import UTC, datetime, timedelta

import polars as pl
import pytest

from cpbmodels.data.columns import PRICES, feature_frame, stands_still
from schemas.backtesting import BacktestSpec
from schemas.errors import UsageError
from schemas.run import RunSpec
from schemas.scope import IngestSpec, ScopeSpec
from schemas.tables import is_table, tables_of
from tasks.market.ingest import update_store
from tasks.market.klines import read_klines
from tasks.market.tables import TableSource
from tasks.steps import ingest as ingest_step
from tests.tools.market_tables import OWN, PLAIN, START, hours, spoiled, stored
from tests.tools.market_tools import build


@pytest.mark.parametrize("factor", [1 / 1000, 10, 2])
@pytest.mark.parametrize(("row", "skipped"), [(30, 0), (48, 0), (60, 0), (60, 5)])
def test_a_leap_of_the_price_level_is_reported_and_ends_a_segment(tmp_path, factor, row, skipped):
    """Within a month, between two (row 48 opens February), and across missing candles."""
    if skipped and factor == 2:
        pytest.skip("across a pause a market may double")
    at, prices = pl.int_range(pl.len()), [pl.col(name) for name in PRICES]
    table = hours().with_columns(
        pl.when(at >= row + skipped).then(name * factor).otherwise(name) for name in prices
    )
    table.filter((at < row) | (at >= row + skipped)).write_parquet(tmp_path / "BTC-USDT-1h.parquet")
    report, rows = stored(tmp_path / "home", tmp_path)
    when = f"{START + timedelta(hours=row + skipped):%Y-%m-%d %H:%M}"
    assert (report.exit, rows.height) == (3, 100 - skipped)
    assert re.search(rf"the price level leaps × [\d.,]+ at {when} UTC: ", report.series[0].reason)
    assert float(report.series[0].leaps[0].split()[1].replace(",", "")) == pytest.approx(factor, rel=0.05)
    step = ingest_step(
        IngestSpec(timeframes="1h", source=str(tmp_path)).scope.model_copy(update={"home": tmp_path / "home"})
    )
    assert [(leap.code, leap.series) for leap in step.leaps] == [("leap", OWN())]
    assert (step.failures, step.series) == ((), (OWN(),))
    after, _ = stored(tmp_path / "home", tmp_path, since="2024-02-02")
    assert after.exit == 0
    assert feature_frame(rows, "1h")["segment"].n_unique() == 2


@pytest.mark.parametrize("suffix", ["parquet", "feather", "csv.gz"])
def test_every_kind_of_file(tmp_path, suffix):
    table, path = hours(), tmp_path / f"BTC-USDT-1h.{suffix}"
    write = {"parquet": table.write_parquet, "feather": table.write_ipc}.get(suffix)
    if write:
        write(path)
    else:
        table.write_csv(path, compression="gzip")
    assert stored(tmp_path / "home", path)[1].equals(table)


def test_symbols_and_timeframes_from_columns(tmp_path):
    path = tmp_path / "candles.csv"
    named = [
        hours(90, s).with_columns(Symbol=pl.lit(n))
        for s, n in (("BTCUSDT", "BTC/USDT:USDT"), ("ETHUSDT", "eth-gbp"))
    ]
    pl.concat(named).rename({"open": "Open", "close": "CLOSE", "open_time": "date"}).write_csv(path)
    report, rows = stored(tmp_path / "home", path)
    assert [series.series.name for series in report.series] == ["own-BTCUSDT-1h", "own-ETHGBP-1h"]
    assert rows.equals(hours(90))
    spec = ScopeSpec(source=str(path), coins="BTC")
    assert (spec.market, spec.coins, spec.timeframes) == ("own", "BTCUSDT", "1h")
    assert ScopeSpec(source=str(path)).scope.series == [OWN("BTCUSDT"), OWN("ETHGBP")]
    assert ScopeSpec.model_validate(spec.model_dump()) == spec
    assert BacktestSpec(source=str(path), architectures="har").timeframes == "1h"
    assert RunSpec(source=str(path)).scope.root.name == "own"


def test_a_table_without_volume_says_so_and_stores_zeros(tmp_path):
    hours().select("open_time", "open", "high", "low", "close").write_csv(tmp_path / "BTCUSDT-1h.csv")
    report, rows = stored(tmp_path / "home", tmp_path)
    assert (rows["volume"] == 0).all()
    assert report.series[0].zero_volume == 100
    assert "own BTCUSDT 1h: BTCUSDT-1h.csv has no volume, so 0 is stored" in report.notes


def test_a_hole_in_a_table_is_no_outage_of_an_exchange(tmp_path):
    hours().filter(~pl.int_range(pl.len()).is_between(20, 24)).write_csv(tmp_path / "BTCUSDT-1h.csv")
    report, _ = stored(tmp_path / "home", tmp_path)
    assert [(hole["bars"], hole["cause"]) for hole in report.series[0].holes] == [(5, "not in the table")]
    assert report.exit == 0


def filled(share, rows=200):
    """A table in which the last candles of each hundred repeat the close before them."""
    kept = pl.int_range(pl.len()) % 100 < 100 * (1 - share)
    last = pl.when(kept).then("close").forward_fill()
    return hours(rows).with_columns(
        pl.when(kept).then("volume").otherwise(0).alias("volume"),
        *(pl.when(kept).then(name).otherwise(last).alias(name) for name in PRICES),
    )


@pytest.mark.parametrize(("share", "told"), [(0.0, False), (0.01, False), (0.02, True), (0.5, True)])
def test_candles_that_stand_still_are_counted_and_told_above_a_percent(tmp_path, share, told):
    filled(share).write_csv(tmp_path / "BTCUSDT-1h.csv")
    report, _ = stored(tmp_path / "home", tmp_path)
    assert report.to_dict()["series"][0]["still"] == round(200 * share)
    assert [f"{share:.1%} of the candles" in warning for warning in report.warnings] == [True] * told
    offline = update_store(scope_of(tmp_path, offline=True))  # as the manifest has it
    assert (offline.series[0].still, offline.warnings) == (report.series[0].still, report.warnings)
    cut = update_store(scope_of(tmp_path, offline=True, as_of="2024-01-31T12:00"))  # within a month
    begun = filled(share)[:36]
    assert (
        cut.series[0].still == stands_still(begun.select(PRICES).to_numpy(), begun["volume"].to_numpy()).sum()
    )


def scope_of(folder, **options):
    made = IngestSpec(source=str(folder / "BTCUSDT-1h.csv"), timeframes="1h", **options).scope
    return made.model_copy(update={"home": folder / "home"})


def test_a_table_may_grow_and_have_a_candle_put_right(tmp_path):
    path, home = tmp_path / "BTCUSDT-1h.csv", tmp_path / "home"
    for count in (30, 31, 60, 100):
        hours(count).write_csv(path)
        report, rows = stored(home, path)
        assert rows.height == count
        assert (report.series[0].status, report.exit) == ("complete", 0)
    hours(100).with_columns(
        volume=pl.when(pl.int_range(pl.len()) == 3).then(1e6).otherwise("volume")
    ).write_csv(path)
    assert stored(home, path)[1]["volume"][3] == 1e6


def test_a_table_cut_at_its_front_goes_on_and_keeps_what_is_stored(tmp_path):
    path, home = tmp_path / "BTCUSDT-1h.csv", tmp_path / "home"
    # an older copy at last, longer before
    for part in (hours(400)[100:200], hours(400)[130:260], hours(400)[90:250]):
        part.write_csv(path)
        report, rows = stored(home, path)
        assert (report.series[0].holes, report.exit) == ([], 0)
    assert rows.equals(hours(400)[90:260])


def moved(table, **by):
    return table.with_columns(pl.col("open_time") + pl.duration(**by))


def dearer(table):
    return table.with_columns(pl.col("open", "high", "low", "close") * 1.0001)


MARCH = moved(hours(48), days=31)


@pytest.mark.parametrize(
    ("first", "other", "why"),
    [
        (hours(400), dearer(hours(400))[150:], "differs in 250 of the 250 stored candles"),
        (hours(400), dearer(moved(hours(400), days=60)), "has none of the stored candles"),
        (hours(400), moved(hours(400), days=-60), "has none of the stored candles"),
        (
            pl.concat([hours(744), MARCH]),
            pl.concat([hours(40), MARCH]),
            "differs in 704 of the 792 stored candles",
        ),
    ],
)
def test_another_table_of_a_symbol_is_refused_and_nothing_is_stored(tmp_path, first, other, why):
    """Two exchanges of one coin never become one series."""
    first_path, second_path, home = (
        tmp_path / "a/BTCUSDT-1h.csv",
        tmp_path / "b/BTCUSDT-1h.csv",
        tmp_path / "home",
    )
    for path, table in ((first_path, first), (second_path, other)):
        path.parent.mkdir()
        table.write_csv(path)
    _, before = stored(home, first_path)
    with pytest.raises(UsageError) as refused:
        stored(home, second_path)
    text = str(refused.value)
    words = (str(second_path), why, "CPB_HOME", f"remove {home / 'own'}")
    assert all(word in text for word in words), text
    assert "\n" not in text
    assert read_klines(home, OWN("BTCUSDT")).select(PLAIN).equals(before)
    assert stored(home, first_path)[1].equals(before)


def changed(count, rows=400):
    """A table of which the last `count` candles lie 10 % higher."""
    prices, last = pl.col(PRICES), pl.int_range(pl.len()) >= rows - count
    return hours(rows).with_columns(pl.when(last).then(prices * 1.1).otherwise(prices))


def changes(report):
    return [note.partition(": ")[2] for note in report.warnings]


def test_a_few_changed_candles_of_a_table_are_stored_and_counted(tmp_path):
    path, home = tmp_path / "BTCUSDT-1h.csv", tmp_path / "home"
    for table in (hours(400), changed(4)):
        table.write_csv(path)
        report, rows = stored(home, path)
    assert rows.equals(changed(4))
    assert changes(report) == ["4 stored candles replaced: the source has changed them"]


@pytest.mark.parametrize("count", [5, 160, 200])
def test_a_changed_history_of_a_table_is_stored_with_rewrite_alone(tmp_path, count):
    path, home = tmp_path / "BTCUSDT-1h.csv", tmp_path / "home"
    hours(400).write_csv(path)
    _, before = stored(home, path)
    changed(count).write_csv(path)
    with pytest.raises(
        UsageError, match=f"has changed {count} of the 400 stored candles .* with --rewrite"
    ) as refused:
        stored(home, path)
    assert refused.value.code == "rewritten"
    assert read_klines(home, OWN("BTCUSDT")).select(PLAIN).equals(before)
    report, rows = stored(home, path, rewrite=True)
    assert rows.equals(changed(count))
    assert changes(report) == [f"{count} stored candles replaced: the source has changed them"]
    assert stored(home, path)[1].equals(rows)  # the next run needs the option no more


def test_rewrite_replaces_a_whole_history_but_never_joins_two(tmp_path):
    path, home = tmp_path / "BTCUSDT-1h.csv", tmp_path / "home"
    hours(400).write_csv(path)
    stored(home, path)
    other = dearer(hours(400))
    other[150:].write_csv(path)
    with pytest.raises(UsageError, match="so it is another table: give its coin"):
        stored(home, path, rewrite=True)
    other.write_csv(path)
    with pytest.raises(UsageError, match="add --rewrite if it is the same table"):
        stored(home, path)
    assert stored(home, path, rewrite=True)[1].equals(other)


@pytest.mark.parametrize("values", [{}, {"source": "sim"}, {"source": "https://mirror.org"}])
def test_rewrite_is_for_tables(values):
    with pytest.raises(UsageError, match=r"^rewrite says how a table is read or stored"):
        ScopeSpec(rewrite=True, **values)


def test_a_table_that_was_renamed_or_given_volumes_is_the_same(tmp_path):
    home = tmp_path / "home"
    hours(100).drop("volume").write_csv(tmp_path / "BTCUSDT-1h.csv")
    stored(home, tmp_path / "BTCUSDT-1h.csv")
    hours(120).write_parquet(tmp_path / "BTC-USDT-1h.parquet")
    assert stored(home, tmp_path / "BTC-USDT-1h.parquet")[1].equals(hours(120))


def test_candles_after_now_are_counted(tmp_path):
    path = tmp_path / "BTCUSDT-1h.csv"
    now = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    for ahead in (0, 30):  # the candle that is being made is none of them
        times = pl.datetime_range(*(now + timedelta(hours=h) for h in (ahead - 99, ahead)), "1h", eager=True)
        hours(100).with_columns(open_time=times).write_csv(path)
        source = TableSource(path)
        source.months(OWN("BTCUSDT"))
        assert [note.partition("which")[0] for note in source.notes] == [
            "own BTCUSDT 1h: BTCUSDT-1h.csv ends with 31 candles that close after now, "
        ] * (ahead > 0)
    moved(hours(), days=20_000).write_csv(path)
    with pytest.raises(UsageError, match="has no candle that closes before now: its times may be shifted"):
        TableSource(path).months(OWN("BTCUSDT"))


LATE = hours().with_columns(pl.col("open_time") + pl.duration(minutes=5))


@pytest.mark.parametrize(
    ("name", "table", "words"),
    [
        ("BTCUSDT-1h.csv", hours().drop("close"), ("BTCUSDT-1h.csv", "close is missing")),
        ("BTCUSDT-15m.csv", LATE, ("row 0", "grid of 15m")),
        ("BTCUSDT-1h.csv", spoiled(hours(), 7, volume=-1.0), ("volume in row 7",)),
        ("candles.csv", hours(), ("candles.csv names no symbol", "SYMBOL-INTERVAL")),
        ("€-1h.csv", hours(), ("'€' in its name is not understood", "SYMBOL-INTERVAL")),
        ("BTCUSDT.csv", hours().with_columns(timeframe=pl.lit("7m")), ("'7m'", "15m")),
        (
            "candles.csv",
            spoiled(hours().with_columns(symbol=pl.lit("A")), 3, symbol=None),
            ("without a symbol",),
        ),
    ],
)
def test_a_wrong_table_is_refused_in_one_sentence(tmp_path, name, table, words):
    table.write_csv(tmp_path / name)
    with pytest.raises(UsageError) as refused:
        stored(tmp_path / "home", tmp_path / name, interval="15m" if "15m" in name else "1h")
    assert name in str(refused.value)
    assert all(word in str(refused.value) for word in words), refused.value
    assert "\n" not in str(refused.value)
    assert refused.value.exit_code == 2


def test_two_tables_of_one_series(tmp_path):
    for name in ("BTCUSDT-1h.csv", "btc_usdt-1h.csv"):
        hours().write_csv(tmp_path / name)
    with pytest.raises(UsageError, match="keep one of the two"):
        tables_of(str(tmp_path))


def test_what_is_asked_for_must_be_there(tmp_path):
    hours().write_csv(tmp_path / "BTCUSDT-1h.csv")
    source = str(tmp_path)
    for wrong, words in (
        ({"coins": "ETH"}, "holds BTCUSDT and no ETH"),
        ({"timeframes": "4h"}, "holds 1h and no 4h"),
        ({"market": "um"}, "cannot be read from a table"),
        ({"source": str(tmp_path / "gone.csv")}, "gone.csv cannot be read"),
    ):
        with pytest.raises(UsageError, match=words):
            ScopeSpec(**({"source": source} | wrong))
    with pytest.raises(UsageError, match="give the table it came from"):
        update_store(ScopeSpec(market="own", coins="BTCUSDT", timeframes="1h").scope)


def test_a_mirror_is_no_table(tmp_path):
    build(tmp_path, symbols=("BTCUSDT",), months=("2024-01",))
    (tmp_path / "notes-1h.csv").write_text("a,b\n1,2\n")
    assert not is_table(str(tmp_path))
    assert not is_table("https://example.org/candles.csv")
