"""The pairs of `--coins exchange`: chosen by kind, age and turnover, as of one instant."""

import json

import polars as pl
import pytest
from folder_mirror import FolderMirror
from hypothesis import given
from hypothesis import strategies as st
from market_tools import build, frame, key, put

from flows import cli
from flows.runner import read_pairs
from schemas.errors import CpbError, UsageError
from schemas.identity import _LEVERAGED, _STABLE, pair_kind
from schemas.run import RunSpec
from schemas.scope import IngestSpec, ScopeSpec
from tasks.market import mirror
from tasks.market.layout import source_file
from tasks.market.pairs import exchange_pairs, with_listed_pairs

AS_OF = "2024-04-01"


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    monkeypatch.setenv("CPB_HOME", str(tmp_path / "home"))


def daily(root, symbol, months, scale=1.0):
    """Publish months of 1d candles of a pair whose turnover is that of the simulator's, scaled."""
    for month in months:
        file = source_file(key(symbol, "1d"), month)
        put(
            root,
            file,
            mirror.to_csv(frame(file).with_columns(quote_volume=scale * frame(file)["quote_volume"]), "1d"),
        )


def chosen(root, **asked):
    return exchange_pairs(
        ScopeSpec(coins="exchange", source=str(root), timeframes="1d", **{"as_of": AS_OF} | asked)
    )


@pytest.fixture
def market(tmp_path):
    """Four coins (one delisted in January, one that begins in the middle of March), a leveraged token, a stablecoin."""
    root = tmp_path / "mirror"
    for symbol, scale in (("BTCUSDT", 1.0), ("JUPUSDT", 1e-3)):
        daily(root, symbol, ("2023-12", "2024-01", "2024-02", "2024-03"), scale)
    daily(root, "OLDUSDT", ("2023-12", "2024-01"))
    file = source_file(key("NEWUSDT", "1d"), "2024-03")
    put(root, file, mirror.to_csv(frame(file).tail(12).with_columns(pl.col("quote_volume") * 1e-5), "1d"))
    for symbol in ("BTCUPUSDT", "USDCUSDT", "ETHBTC"):
        daily(root, symbol, ("2024-03",))
    return root


def test_leveraged_tokens_stablecoins_other_quotes_and_delisted_pairs_are_left_out(market):
    found = chosen(market)
    assert found.symbols == ("BTCUSDT", "JUPUSDT", "NEWUSDT")
    assert found.left_out == {
        "leveraged": 1,
        "against a stablecoin or currency": 1,
        "not traded in 2024-03": 1,
    }
    assert str(found).startswith("exchange: 3 of 6 listed pairs (left out: 1 leveraged")


def test_a_delisted_pair_is_there_as_of_the_time_when_it_was_traded(market):
    found = chosen(market, as_of="2024-02-10")
    assert found.symbols == ("BTCUSDT", "JUPUSDT", "OLDUSDT")


@pytest.mark.parametrize(("days", "kept"), [(11, True), (12, True), (13, False), (40, False)])
def test_age_counts_from_the_first_candle_and_not_from_its_month(market, days, kept):
    assert ("NEWUSDT" in chosen(market, min_days_listed=days).symbols) is kept


@pytest.mark.parametrize(
    ("as_of", "kept"), [("2024-03-20", False), ("2024-03-20T23:59", False), ("2024-03-21", True)]
)
def test_a_pair_is_listed_from_its_first_closed_candle_on(market, as_of, kept):
    assert ("NEWUSDT" in chosen(market, as_of=as_of).symbols) is kept


def test_turnover_is_that_of_the_last_whole_month_before_as_of(market):
    daily(market, "JUPUSDT", ("2024-04",), scale=1e3)  # the future
    file = source_file(key("BTCUSDT", "1d"), "2024-03")
    btc = frame(file)["quote_volume"].sum()
    assert chosen(market, min_quote_volume=btc * 0.999).symbols == ("BTCUSDT",)
    assert chosen(market, min_quote_volume=1).symbols == ("BTCUSDT", "JUPUSDT", "NEWUSDT")
    assert chosen(market, number_assets=1, as_of="2024-04-20").symbols == ("BTCUSDT",)
    assert chosen(market, number_assets=2).symbols == ("BTCUSDT", "JUPUSDT")
    assert len(chosen(market, number_assets=10**24).symbols) == 3


def test_a_pair_of_this_month_has_daily_files_only(market):
    for day in range(25, 32):
        put(market, source_file(key("FRESHUSDT", "1d"), f"2024-03-{day}"))
    assert "FRESHUSDT" in chosen(market).symbols
    assert "FRESHUSDT" in chosen(market, min_days_listed=7).symbols
    assert "FRESHUSDT" not in chosen(market, min_days_listed=8).symbols


def test_a_url_a_folder_and_candles_of_another_interval_give_the_same_pairs(tmp_path):
    root = tmp_path / "mirror"
    build(root, ("BTCUSDT", "ETHUSDT"), interval="1h")
    with mirror.serve(FolderMirror(root)) as url:
        served = exchange_pairs(
            ScopeSpec(coins="exchange", source=url, timeframes="1h", as_of=AS_OF, number_assets=1)
        )
    assert served == exchange_pairs(
        ScopeSpec(coins="exchange", source=str(root), timeframes="1h", as_of=AS_OF, number_assets=1)
    )
    assert len(served.symbols) == 1


def test_a_damaged_file_leaves_its_pair_out_and_no_other(market):
    put(market, source_file(key("JUPUSDT", "1d"), "2024-03"), payload=b"<html>")
    found = chosen(market, min_quote_volume=1)
    assert found.symbols == ("BTCUSDT", "NEWUSDT")
    assert found.left_out["with a damaged file"] == 1


def test_a_source_without_a_listing_is_one_sentence(market):
    def hook(handler, name, query):
        return None if name else (403, {}, b"no listing here")

    with (
        mirror.serve(FolderMirror(market), hook) as url,
        pytest.raises(CpbError, match="--coins") as error,
    ):
        chosen(url)
    assert error.value.code == "listing"
    assert "\n" not in str(error.value)


def test_nothing_left_says_why(market):
    with pytest.raises(CpbError, match=r"no pair of .* is left \(left out: .*3 below 1,000"):
        chosen(market, min_quote_volume=1e15)


def test_a_specification_gets_its_pairs_once_and_keeps_what_was_asked(market):
    spec = RunSpec(coins="exchange", source=str(market), as_of=AS_OF, preset="smoke", number_assets=2)
    assert spec.scope.symbols == ()
    found, sentence = with_listed_pairs(spec)
    assert found.scope.symbols == found.pairs == ("BTCUSDT", "JUPUSDT")
    assert found.model_dump() == spec.model_dump()
    assert "2 of 6" in sentence
    assert spec.scope.symbols == ()
    said: list[str] = []
    named = RunSpec(coins="BTC", preset="smoke")
    assert (read_pairs(found, said.append), read_pairs(named, said.append)) == (found, named)
    assert said == []


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"coins": "BTC", "min_days_listed": 3}, "min_days_listed"),
        ({"coins": "all", "number_assets": 3}, "number_assets"),
        ({"coins": "exchange", "number_assets": 0}, "number_assets"),
        ({"coins": "exchange", "number_assets": True}, "number_assets"),
        ({"coins": "exchange", "min_quote_volume": True}, "min_quote_volume"),
        ({"coins": "exchange", "min_quote_volume": -1}, "min_quote_volume"),
        ({"coins": "exchange", "market": "own", "source": "candles.csv"}, "coins"),
    ],
)
def test_filters_that_cannot_be(asked, field):
    with pytest.raises(UsageError) as error:
        ScopeSpec(**asked)
    assert error.value.field == field


def test_filters_do_not_go_with_all_listed_pairs():
    with pytest.raises(UsageError):
        IngestSpec(coins="all-usdt", min_days_listed=1)


def test_the_command_takes_it(market, tmp_path, monkeypatch, capsys):
    asked = [
        "--source",
        str(market),
        "--coins",
        "exchange",
        "--number-assets",
        "2",
        "--timeframes",
        "1d",
        "--as-of",
        AS_OF,
    ]
    monkeypatch.setattr("sys.argv", ["cpb", "ingest", *asked, "--json"])
    with pytest.raises(SystemExit):
        cli.main()
    written = capsys.readouterr()
    assert [one["symbol"] for one in json.loads(written.out)["series"]] == ["BTCUSDT", "JUPUSDT"]
    assert "exchange: 2 of 6 listed pairs" in written.err


_BASES = st.text(alphabet="ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", min_size=1, max_size=12)


@given(_BASES, st.sampled_from(["", "UP", "DOWN", "BULL", "BEAR"]))
def test_only_the_known_tokens_are_leveraged(base, suffix):
    name = base + suffix
    kind = pair_kind(f"{name}USDT")
    assert (kind == "leveraged") == (name in _LEVERAGED)
    assert (kind == "stablecoin") == (name in _STABLE)
    assert kind != "other quote"


@given(_BASES, st.sampled_from(["BTC", "USDC", "TRY", "USDT_240628", "_PERP", ""]))
def test_every_other_quote_is_told(base, quote):
    symbol = base + quote
    assert (pair_kind(symbol) == "other quote") == (not symbol.endswith("USDT") or symbol == "USDT")


@pytest.mark.parametrize(
    "symbol", ["JUPUSDT", "SYRUPUSDT", "PUMPUSDT", "USTCUSDT", "1INCHUSDT", "币安人生USDT"]
)
def test_coins_whose_names_look_like_tokens_are_coins(symbol):
    assert pair_kind(symbol) == "coin"
