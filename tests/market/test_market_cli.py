"""`cpb ingest` as people and programs call it."""

import json
import socket
from contextlib import nullcontext
from functools import partial

import pytest

from schemas.coins import is_coin_pair
from schemas.errors import CpbError, UsageError
from schemas.run import RunSpec
from schemas.scope import ScopeSpec
from tasks.market import listing, simulator
from tasks.market.client import HttpSource
from tasks.market.layout import source_file
from tasks.market.listing import with_listed_pairs
from tests.tools.folder_mirror import FolderMirror
from tests.tools.market_tools import FAST, build, key, put


@pytest.fixture
def call(tmp_path, monkeypatch, cpb_here):
    """Runs `cpb ingest` in this process; returns the exit code, stdout and stderr."""
    monkeypatch.setenv("CPB_HOME", str(tmp_path / "home"))
    root = build(tmp_path / "mirror")

    return partial(cpb_here, "ingest", "--source", root, "--timeframes", "1h", "--as-of", "2024-04-01")


def test_one_json_object_on_stdout(call):
    code, out, _ = call("--coins", "BTC,ETH", "--json")
    report = json.loads(out)
    assert code == report["exit"] == 0
    assert {"series", "requests", "seconds", "exit"} <= set(report)
    wanted = {"market", "symbol", "timeframe", "rows", "first", "last", "holes", "files", "digest"}
    assert wanted <= set(report["series"][0])
    assert set(report["series"][0]["files"]) == {"ok", "repaired", "quarantined", "unverified", "missing"}


def test_a_table_for_people_and_three_for_partial(call):
    code, out, _ = call("--coins", "BTC,NOPE")
    assert code == 3
    assert "BTCUSDT 1h" in out
    assert "NOPEUSDT 1h: not listed at" in out


def test_exchange_takes_every_listed_pair_of_a_coin(call, tmp_path):
    for symbol in ("JUPUSDT", "BTCUPUSDT", "USDCUSDT", "ETHBTC"):
        put(tmp_path / "mirror", source_file(key(symbol), "2024-03"))
    _, out, err = call("--coins", "exchange", "--json")
    assert [s["symbol"] for s in json.loads(out)["series"]] == ["BTCUSDT", "ETHUSDT", "JUPUSDT"]
    assert "exchange: 3 pairs (2 leveraged or stable left out)" in err


@pytest.mark.parametrize(
    "symbol", ["JUPUSDT", "SYRUPUSDT", "PUMPUSDT", "USTCUSDT", "1INCHUSDT", "币安人生USDT"]
)
def test_coins_whose_names_look_like_tokens_are_coins(symbol):
    assert is_coin_pair(symbol)


def test_a_specification_gets_its_pairs_once_and_keeps_what_else_was_asked(tmp_path):
    root = build(tmp_path / "mirror", ("BTCUSDT", "BTCUPUSDT"))
    spec = RunSpec(coins="exchange", source=str(root), as_of="2024-04-01", preset="smoke")
    assert spec.scope.symbols == ()
    listed = with_listed_pairs(spec, print)
    assert listed.scope.symbols == ("BTCUSDT",)
    assert listed.model_dump() | {"coins": "exchange"} == spec.model_dump()
    said: list[str] = []
    assert with_listed_pairs(listed, said.append) == listed
    assert said == []


def test_a_source_without_a_listing_is_one_sentence(tmp_path):
    with (
        simulator.serve(FolderMirror(tmp_path), lists=False) as url,
        pytest.raises(CpbError, match="name the coins") as error,
    ):
        with_listed_pairs(ScopeSpec(coins="exchange", source=url.replace("://", "://user:secret@")), print)
    assert error.value.code == "source"
    assert "\n" not in str(error.value)
    assert "secret" not in str(error.value)


def test_a_listing_that_cannot_be_reached_is_no_listing_without_pairs(tmp_path, monkeypatch):
    """Binance's listing has a host of its own: a night of the whole exchange is tried again by this code."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        blocked = f"http://127.0.0.1:{free.getsockname()[1]}"
    with simulator.serve(FolderMirror(tmp_path), lists=False) as url:
        source = HttpSource(url, listing=blocked, limits=FAST)
        monkeypatch.setattr(listing, "open_source", lambda _scope: nullcontext(source))
        with pytest.raises(CpbError, match="cannot be reached") as error:
            with_listed_pairs(ScopeSpec(coins="exchange"), print)
    assert error.value.code == "unreachable"


def test_a_table_has_no_listing():
    with pytest.raises(UsageError) as error:
        ScopeSpec(coins="exchange", market="own", source="candles.csv")
    assert error.value.field == "coins"
