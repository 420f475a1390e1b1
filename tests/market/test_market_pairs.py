"""The pairs of `--coins exchange`: every listed pair of a coin against USDT."""

import json

import pytest
from folder_mirror import FolderMirror
from market_tools import build

from flows import cli
from flows.runner import read_pairs
from schemas.errors import CpbError, UsageError
from schemas.identity import is_coin_pair
from schemas.run import RunSpec
from schemas.scope import ScopeSpec
from tasks.market import simulator
from tasks.market.ingest import with_listed_pairs

AS_OF = "2024-04-01"


@pytest.fixture
def market(tmp_path, monkeypatch):
    """Two coins, a leveraged token, a stablecoin and a pair against BTC."""
    monkeypatch.setenv("CPB_HOME", str(tmp_path / "home"))
    return build(tmp_path / "mirror", ("BTCUSDT", "JUPUSDT", "BTCUPUSDT", "USDCUSDT", "ETHBTC"))


def test_a_specification_gets_its_pairs_once_and_keeps_what_else_was_asked(market):
    spec = RunSpec(coins="exchange", source=str(market), as_of=AS_OF, preset="smoke")
    assert spec.scope.symbols == ()
    found, sentence = with_listed_pairs(spec)
    assert found.scope.symbols == ("BTCUSDT", "JUPUSDT")
    assert found.model_dump() | {"coins": "exchange"} == spec.model_dump()
    assert sentence == "exchange: 2 pairs (2 leveraged or stable left out)"
    said: list[str] = []
    named = RunSpec(coins="BTC", preset="smoke")
    assert (read_pairs(found, said.append), read_pairs(named, said.append)) == (found, named)
    assert said == []


def test_a_source_without_a_listing_is_one_sentence(market):
    def hook(handler, name, query):
        return None if name else (403, {}, b"no listing here")

    with (
        simulator.serve(FolderMirror(market), hook) as url,
        pytest.raises(CpbError, match="--coins") as error,
    ):
        with_listed_pairs(ScopeSpec(coins="exchange", source=url))
    assert error.value.code == "source"
    assert "\n" not in str(error.value)


def test_a_listing_without_coins_is_one_sentence_without_the_password(tmp_path):
    build(tmp_path, ("USDCUSDT",))
    with (
        simulator.serve(FolderMirror(tmp_path)) as url,
        pytest.raises(CpbError, match="stablecoins only") as error,
    ):
        with_listed_pairs(ScopeSpec(coins="exchange", source=url.replace("://", "://user:secret@")))
    assert "secret" not in str(error.value)


def test_a_table_has_no_listing():
    with pytest.raises(UsageError) as error:
        ScopeSpec(coins="exchange", market="own", source="candles.csv")
    assert error.value.field == "coins"


def test_the_command_takes_it(market, monkeypatch, capsys):
    asked = ["--source", str(market), "--coins", "exchange", "--timeframes", "1h", "--as-of", AS_OF]
    monkeypatch.setattr("sys.argv", ["cpb", "ingest", *asked, "--json"])
    with pytest.raises(SystemExit):
        cli.main()
    written = capsys.readouterr()
    assert [series["symbol"] for series in json.loads(written.out)["series"]] == ["BTCUSDT", "JUPUSDT"]
    assert "exchange: 2 pairs" in written.err


@pytest.mark.parametrize(
    "symbol", ["JUPUSDT", "SYRUPUSDT", "PUMPUSDT", "USTCUSDT", "1INCHUSDT", "币安人生USDT"]
)
def test_coins_whose_names_look_like_tokens_are_coins(symbol):
    assert is_coin_pair(symbol)
