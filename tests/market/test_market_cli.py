"""`cpb ingest` as people and programs call it."""

import json

import pytest
import typer
from market_tools import build, key, put
from typer.testing import CliRunner

from flows.cli.ingest import ingest
from schemas.errors import CpbError, UsageError
from tasks.market.layout import source_file

app = typer.Typer()
app.command()(ingest)


@pytest.fixture
def call(tmp_path, monkeypatch):
    monkeypatch.setenv("CPB_HOME", str(tmp_path / "home"))
    root = build(tmp_path / "mirror")

    def run(*options):
        common = ["--source", str(root), "--timeframes", "1h", "--as-of", "2024-04-01"]
        return CliRunner().invoke(app, [*common, *options])

    return run


def test_one_json_object_on_stdout(call):
    result = call("--coins", "BTC,ETH", "--json")
    told = json.loads(result.stdout)
    assert result.exit_code == told["exit"] == 0
    assert {"series", "requests", "seconds", "exit"} <= set(told)
    assert {"symbol", "timeframe", "rows", "first", "last", "holes", "files", "digest"} <= set(
        told["series"][0]
    )
    assert set(told["series"][0]["files"]) == {"ok", "repaired", "quarantined", "unverified", "missing"}


def test_a_table_for_people_and_three_for_partial(call):
    result = call("--coins", "BTC,NOPE")
    assert result.exit_code == 3
    assert "BTCUSDT 1h" in result.stdout
    assert "NOPEUSDT 1h: not listed at" in result.stdout


def test_plan_and_report(call, tmp_path):
    planned = call("--coins", "BTC", "--plan")
    assert planned.exit_code == 0
    assert "3 of 3 files to fetch" in planned.stdout
    assert not (tmp_path / "home").exists()
    assert call("--coins", "BTC", "--report").exit_code == 0
    assert json.loads((tmp_path / "home/reports/ingest.json").read_text())["series"]


def test_all_usdt_takes_every_listed_pair(call, tmp_path):
    put(tmp_path / "mirror", source_file(key("WIFUSDT"), "2024-03"))
    put(tmp_path / "mirror", source_file(key("ETHBTC"), "2024-03"))
    told = json.loads(call("--symbols", "all-usdt", "--json").stdout)
    assert [s["symbol"] for s in told["series"]] == ["BTCUSDT", "ETHUSDT", "WIFUSDT"]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--timeframes", "7m"], UsageError),
        (["--market", "options"], UsageError),
        (["--since", "soon"], UsageError),
        (["--source", "/no/such/folder"], UsageError),
        (["--source", "http://127.0.0.1:9", "--coins", "BTC"], CpbError),
    ],
)
def test_what_cannot_be_is_one_sentence(call, options, error):
    result = call(*options)
    assert isinstance(result.exception, error)
    assert "\n" not in str(result.exception)
