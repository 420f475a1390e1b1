"""A misspelt coin is refused before a training loads its libraries, where this machine's candles can tell."""

import json
import subprocess
import sys

import pytest

from schemas.errors import UsageError
from schemas.identity import SeriesId
from schemas.scope import ScopeSpec
from tasks.market.listing import check_coins

HEAVY = {"mlflow", "sqlalchemy", "prefect", "torch", "tasks.steps", "flows.train_all"}
LOADED = """
import json, os, sys
from flows import cli
import flows.cli.app, flows.cli.train, tasks.market.listing
for words in json.loads(sys.argv[1]):
    if os.fork() == 0:
        sys.argv = ["cpb", *words]
        try:
            cli.main()
        except SystemExit as end:
            print(end.code or 0, *sys.modules, flush=True)
        os._exit(0)
    os.wait()
"""
"""Each command in a child of its own, which has what every one of them imports."""


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    """A mirror's folder with one coin, and futures of another by the thousand."""
    monkeypatch.setenv("CPB_HOME", str(tmp_path / "data"))
    for place in ("spot/monthly/klines/BTCUSDT/1h", "futures/um/monthly/klines/1000PEPEUSDT/1h"):
        (tmp_path / "mirror/data" / place).mkdir(parents=True)
    return tmp_path / "mirror"


def test_a_misspelt_coin_is_refused_with_similar_names(mirror):
    with pytest.raises(UsageError) as caught:
        check_coins(ScopeSpec(coins="BTX", source=str(mirror)))
    assert f"{mirror} has nothing of BTX (did you mean BTC?), only of BTC" in str(caught.value)
    assert (caught.value.code, caught.value.exit_code) == ("coins", 2)


@pytest.mark.parametrize(
    "asked",
    [
        {"coins": "BTC,BTX"},  # the ingestion tells of the one that is missing
        {"coins": "DOGE"},  # no typo: the folder lacks it
        {"coins": "PEPE", "market": "um"},  # there by another unit
        {"coins": "BTX", "market": "cm"},  # nothing is there: no fault of the name
    ],
)
def test_what_may_be_right_is_left_to_the_ingestion(mirror, asked):
    check_coins(ScopeSpec(**asked, source=str(mirror)))


@pytest.mark.parametrize("source", [None, "http://127.0.0.1:1", "sim"])
def test_a_source_behind_a_network_is_not_asked(mirror, source):
    check_coins(ScopeSpec(coins="BTX", source=source))


def test_offline_the_stored_candles_tell(mirror, tmp_path):
    SeriesId("spot", "ETHUSDT", "1h").folder(tmp_path / "data", "klines").mkdir(parents=True)
    with pytest.raises(UsageError, match=r"has nothing of ETX \(did you mean ETH\?\), only of ETH"):
        check_coins(ScopeSpec(coins="ETX", offline=True))
    check_coins(ScopeSpec(coins="ETX", offline=True, market="um"))


def test_trainings_refuse_it_before_they_load_their_libraries(mirror, tmp_path):
    some = ("--coins", "BTX", "--timeframes", "1h")
    commands = [
        ("train-all", *some),
        ("train", "--arch", "har", "BTX", "1h"),
        ("tune", "--arch", "har", *some),
        ("backtest", *some),
    ]
    words = json.dumps([(*command, "--source", str(mirror), "--json") for command in commands])
    done = subprocess.run(
        [sys.executable, "-c", LOADED, words], capture_output=True, text=True, timeout=200, cwd=tmp_path
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 2 * len(commands), done.stderr
    for command, answer, last in zip(commands, lines[::2], lines[1::2], strict=True):
        code, *modules = last.split()
        assert (int(code), json.loads(answer)["code"]) == (2, "coins"), command
        assert not HEAVY & set(modules), command
    assert not (tmp_path / "data").exists()
