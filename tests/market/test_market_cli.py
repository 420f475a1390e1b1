"""`cpb ingest` as people and programs call it."""

import json

import pytest
from market_tools import build, key, put

from flows import cli
from tasks.market.layout import source_file


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """Runs `cpb ingest` in this process; returns the exit code, stdout and stderr."""
    monkeypatch.setenv("CPB_HOME", str(tmp_path / "home"))
    root = build(tmp_path / "mirror")

    def run(*options):
        common = ["--source", str(root), "--timeframes", "1h", "--as-of", "2024-04-01"]
        monkeypatch.setattr("sys.argv", ["cpb", "ingest", *common, *options])
        with pytest.raises(SystemExit) as end:
            cli.main()
        written = capsys.readouterr()
        return end.value.code or 0, written.out, written.err

    return run


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


def test_plan(call, tmp_path):
    code, out, _ = call("--coins", "BTC", "--plan")
    assert code == 0
    assert "3 of 3 files to fetch" in out
    assert not (tmp_path / "home").exists()


def test_a_plan_with_a_misspelt_coin_says_so(call):
    code, out, told = call("--coins", "BTC,NOPE", "--plan")
    assert code == 2
    assert "has nothing of NOPEUSDT, only of BTCUSDT; check the name" in out + told
    assert call("--coins", "BTC,LUNA", "--plan")[0] == 0  # of the default universe, though not in this mirror


def test_all_usdt_takes_every_listed_pair(call, tmp_path):
    put(tmp_path / "mirror", source_file(key("WIFUSDT"), "2024-03"))
    put(tmp_path / "mirror", source_file(key("ETHBTC"), "2024-03"))
    report = json.loads(call("--coins", "all-usdt", "--json")[1])
    assert [s["symbol"] for s in report["series"]] == ["BTCUSDT", "ETHUSDT", "WIFUSDT"]


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--timeframes", "7m"], 2),
        (["--since", "0999-01"], 2),
        (["--source", "/no/such/folder"], 2),
        (["--source", "http://127.0.0.1:9", "--coins", "BTC"], 1),
    ],
)
def test_what_cannot_be_is_one_sentence(call, options, code):
    found, out, err = call(*options)
    assert (found, out, err.count("\n")) == (code, "", 1)
