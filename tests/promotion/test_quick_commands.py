"""A command loads what it needs: where the registry is as it was, `forecast` and `champions` do without MLflow."""

import json
import shutil
import subprocess
import sys

import pytest

from flows.forecast import run_forecast
from schemas.forecasting import ForecastSpec
from schemas.home import home_folder
from tasks.tracking.registry import ALIAS, PREVIOUS
from tasks.tracking.registry_copy import COPY
from tasks.tracking.store import open_store
from tasks.verify.verification import verify_all
from tests.tools.promotion_tools import BTC, SECOND, night

WITHOUT = {"mlflow", "prefect", "sqlalchemy", "pandas", "scipy", "matplotlib"}

LOADED = """
import sys
from flows import cli
try:
    cli.main()
except SystemExit as end:
    print(end.code or 0, *sys.modules)
"""


def loaded(*words):
    """Run `cpb WORDS --json` in a process of its own; its answer, exit code, and the modules that it has loaded."""
    command = [sys.executable, "-c", LOADED, *words, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    *_, answer, last = done.stdout.splitlines()
    code, *modules = last.split()
    return json.loads(answer), int(code), set(modules)


def asked(spec):
    """Forecast; the rows without the time at which they were stored, and all else that is said."""
    result = run_forecast(spec, lambda _: None)
    rows = [{name: value for name, value in row.items() if name != "made_at"} for row in result.pop("rows")]
    return rows, result


def batches(home):
    """The batches of the chain without times and digests, which cover the time at which rows were stored."""
    lines = map(json.loads, (home / "sim/forecasts/chain.jsonl").read_text().splitlines())
    return [(line["kind"], [(entry["file"], entry["rows"]) for entry in line["entries"]]) for line in lines]


@pytest.fixture
def copied(trainer, cpb_here):
    """A home after one night with the registry's copy in it."""
    assert cpb_here("champions")[0] == 0
    assert (home_folder() / COPY).exists()
    return home_folder()


def test_the_forecasts_are_the_same_whichever_way_the_champions_were_read(copied, monkeypatch):
    spec = ForecastSpec(source="sim", as_of=SECOND, offline=True)
    (copied / COPY).unlink()
    before = copied.parent / "before"
    shutil.copytree(copied / "sim", before)
    by_mlflow = asked(spec)
    assert by_mlflow[1]["new_rows"] > 0
    chain = batches(copied)

    shutil.rmtree(copied / "sim")
    before.rename(copied / "sim")
    for name in ("tasks.hub.packaged.open_store", "tasks.tracking.store.store_at"):
        monkeypatch.setattr(name, pytest.fail)
    assert asked(spec) == by_mlflow
    assert batches(copied) == chain


def test_champions_are_the_same_whichever_way_they_were_read(copied, cpb_here):
    by_copy = cpb_here("champions", "--why", "--json")
    (copied / COPY).unlink()
    assert cpb_here("champions", "--why", "--json") == by_copy


def test_commands_load_neither_mlflow_nor_prefect_while_the_store_is_as_it_was(copied):
    answer, code, modules = loaded("forecast", "--source", "sim", "--offline", "--as-of", SECOND)
    assert (code, len(answer["rows"])) == (0, 20)
    assert not modules & WITHOUT
    answer, code, modules = loaded("champions")
    assert (code, len(answer["champions"])) == (0, 2)
    assert not modules & (WITHOUT | {"torch"})


def test_a_misspelt_coin_is_refused_before_anything_heavy_is_loaded(copied):
    answer, code, modules = loaded("forecast", "BTX", "1h", "--source", "sim")
    assert (code, answer["code"]) == (2, "coins")
    assert "BTX" in answer["error"]
    assert not modules & (WITHOUT | {"torch"})


def test_a_champion_that_was_promoted_since_is_the_one_that_forecasts_and_is_shown(copied, trainer, cpb_here):
    night(as_of=SECOND)
    client = open_store().client
    aliases = client.get_registered_model(BTC.registered).aliases
    other = aliases[PREVIOUS]
    client.set_registered_model_alias(BTC.registered, ALIAS, other)
    shown = json.loads(cpb_here("champions", "--json")[1])["champions"]
    assert str(next(row["version"] for row in shown if row["symbol"] == "BTCUSDT")) == str(other)
    rows = run_forecast(ForecastSpec(source="sim", as_of=SECOND, offline=True), lambda _: None)["rows"]
    assert f"{BTC.registered}/{other}" in {row["model_version"] for row in rows}


def test_a_training_leaves_a_copy_that_the_next_command_believes(trainer, cpb_here, monkeypatch):
    night(as_of=SECOND)
    monkeypatch.setattr("tasks.promotion.by_hand.read_store", pytest.fail)
    assert cpb_here("champions")[0] == 0


def test_a_damaged_copy_is_found_by_verify_with_the_command_that_writes_it_anew(copied, cpb_here):
    (copied / COPY).write_bytes((copied / COPY).read_bytes()[:-9])
    (found,) = verify_all(copied, ("sim",)).damaged
    assert (found.path, found.command) == (COPY, "cpb champions")
    assert cpb_here(*found.command.split()[1:])[0] == 0
    assert verify_all(copied, ("sim",)).damaged == []
