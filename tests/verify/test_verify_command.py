"""`cpb verify`, and what a run does about damage that it meets."""

import json
import re

import pytest
from fastapi.testclient import TestClient

from flows.forecast import run_forecast
from schemas.errors import BusyError, CpbError
from tasks.storage.packaged import packaged_models
from tasks.tracking.champions import champions
from tasks.tracking.store import open_store
from tasks.verify.verification import KINDS, verify_all
from tests.tools.stored_home import MARKET, SERIES, champion, cut, flip, hour, member_of, train_again
from webapp.app import create_app

KINDS_OF_PAGE = ("candles", "forecast", "ledger")


@pytest.fixture
def cpb(cpb_here):
    def call(*arguments):
        code, out, err = cpb_here(*arguments)
        return code, out.strip().splitlines(), err

    return call


def test_a_good_home(stored, cpb):
    code, out, err = cpb("verify")
    assert (code, out) == (0, [])
    assert "0 damaged" in err
    code, out, _ = cpb("verify", "--market", "um", "--json")
    answer = json.loads(out[-1])
    assert len(answer.pop("unseen")) == 1  # of MLflow's store
    assert (code, answer) == (0, {"checked": 0, "damaged": [], "unchecked": [], "behind": [], "exit": 0})


def test_a_home_without_anything_is_no_clean_bill(cpb, monkeypatch, tmp_path):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("CPB_HOME", str(tmp_path / "typo"))
    code, out, err = cpb("verify", "--json")
    assert (code, json.loads(out[-1])["code"]) == (1, "no-home")
    assert f"nothing is stored in {tmp_path / 'typo'}: there is no such folder" in err
    (tmp_path / "typo").mkdir()
    code, out, err = cpb("verify")
    assert (code, out, err) == (0, [], f"nothing is stored in {tmp_path / 'typo'}\n")


def test_one_line_for_each_damaged_file(stored, cpb):
    candles = SERIES.folder(stored, "klines") / "2025-04.parquet"
    features = next(SERIES.folder(stored, "features").glob("*.parquet"))
    weights = champion().folder / "model.safetensors"
    score = next(member_of(stored).glob("score-*.npz"))
    damaged = [candles, features, weights, score]
    for path in damaged:
        cut(path)
    code, out, _ = cpb("verify")
    assert code == 1
    assert {line.split("  ")[0] for line in out} == {
        p.relative_to(stored).as_posix() if p.is_relative_to(stored) else str(p) for p in damaged
    }
    assert all(line.count("  ") == 2 and re.search("  -> (cpb|rm) ", line) for line in out)
    code, out, _ = cpb("verify", "--market", "sim", "--json")
    result = json.loads(out[-1])
    assert (code, result["exit"], len(result["damaged"])) == (1, 1, 4)
    assert result["checked"] > 30
    assert set(result["damaged"][0]) == {"path", "reason", "command"}


def test_an_unknown_market(stored, cpb):
    code, out, _ = cpb("verify", "--market", "moon", "--json")
    assert (code, json.loads(out[-1])["code"], json.loads(out[-1])["field"]) == (2, "market", "market")


def test_what_cannot_be_checked_stops_no_other_kind_and_is_no_success(stored, monkeypatch):
    def busy(*_, **__):
        raise BusyError("another process is writing")
        yield

    cut(champion().folder / "config.json")
    monkeypatch.setitem(KINDS, "candles", busy)
    result = verify_all(stored, (MARKET,))
    assert [d.path for d in result.damaged] == [str(champion().folder / "config.json")]
    assert len(result.unchecked) == 1
    assert not result.is_good
    monkeypatch.undo()


def test_the_same_command_mends_weights_of_a_fleet_and_of_its_champion(stored):
    first, _ = train_again()
    fleet, registered = member_of(stored, "model/model.safetensors"), champion().folder / "model.safetensors"
    whole = fleet.read_bytes()
    assert registered.read_bytes() == whole
    flip(fleet)
    cut(registered)
    again, _ = train_again()
    told, before = (summary.as_json() for summary in (again, first))
    for figures in (
        told.pop("fleets"),
        before.pop("fleets"),
    ):  # seconds and memory are those of each training
        assert [fleet["epochs_run"] is None for fleet in figures] == [False, True]
    assert (again.exit_code, told) == (0, before)
    assert fleet.read_bytes() == registered.read_bytes() == whole
    assert verify_all(stored, (MARKET,)).is_good


@pytest.mark.parametrize("name", ["score-*.npz", "model/forecast.png", "model/metrics.json"])
def test_the_same_command_judges_again_where_a_score_is_damaged(stored, name):
    (path,) = member_of(stored).glob(name)
    scores = (champion().folder / "metrics.json").read_bytes()
    cut(path)
    assert train_again()[0].exit_code == 0
    assert verify_all(stored, (MARKET,)).is_good
    assert (champion().folder / "metrics.json").read_bytes() == scores


def test_a_damaged_month_makes_one_forecast_partial(stored, monkeypatch):
    (month,) = SERIES.folder(stored, "forecasts").glob("*.parquet")
    whole = month.read_bytes()
    flip(month)
    said = []
    with TestClient(create_app(stored), base_url="http://127.0.0.1:8000") as page:
        result = run_forecast(hour("2025-05-23"), said.append)
        assert (result["exit"], result["series"], len(result["failed"])) == (3, 1, 1)  # said once
        assert result["new_rows"] > 0
        assert any(line.startswith("FAILED ") and "restore it from a backup" in line for line in said)
        for path in (
            "/healthz",
            "/api/symbols",
            *(f"/api/{kind}/BTC/1h?market=sim" for kind in KINDS_OF_PAGE),
        ):
            assert page.get(path).status_code in (200, 404), path
    assert run_forecast(hour("2025-05-23"), said.append)["exit"] == 3
    month.write_bytes(whole)
    assert run_forecast(hour("2025-05-23"), said.append)["exit"] == 0
    assert verify_all(stored, (MARKET,)).is_good


def test_a_refusal_for_damage_names_one_command_only(stored):
    for model in (*champions(open_store(), market=MARKET), *packaged_models(stored, MARKET)):
        cut(model.folder / "model.safetensors")
    with pytest.raises(CpbError) as caught:
        run_forecast(hour("2025-05-23"), lambda _: None)
    assert caught.value.code == "no-forecast"
    assert all(
        command.startswith("cpb train-all ") for command in re.findall(r"`([^`]+)`", str(caught.value))
    )


def test_publishing_without_a_damaged_champion_is_partial(stored, cpb):
    cut(champion().folder / "config.json")
    code, out, err = cpb("publish", "--dry-run", "--market", "sim", "--json")
    said = json.loads(out[-1])
    assert (code, said["exit"], [f["symbol"] for f in said["failures"]]) == (3, 3, ["BTCUSDT"])
    assert "FAILED" in err
