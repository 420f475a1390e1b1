"""A run that ends with forecasts brings its Space up to date: by train-all, and by each forecast."""

import json

import pytest

from flows.cli import main
from flows.forecast import run_forecast
from flows.train_all import run_train_all
from schemas.errors import CpbError
from schemas.forecasting import ForecastSpec
from schemas.run import RunSpec
from tasks.hub.publish import publish_page
from tasks.steps import check_publishable
from tests.tools.fake_hub import TOKEN, fake_hub

pytestmark = pytest.mark.slow

SPACE = "alice/prices"
SCOPE = {
    "coins": "BTC",
    "timeframes": "1h",
    "source": "sim",
    "since": "2025-03-01",
    "as_of": "2025-06-06T12:00",
}


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    monkeypatch.setenv("CPB_HOME", str(tmp_path / "data"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def quiet(_line):
    pass


def test_a_night_and_each_forecast_after_it_refresh_the_page(monkeypatch):
    with fake_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        run = run_train_all(RunSpec(**SCOPE, preset="smoke", architectures="har", space=SPACE), quiet)
        assert run.failures == []
        about = json.loads(hub.content(SPACE, "page.json"))
        assert (about["market"], about["nightly"]) == ("sim", True)
        (row,) = json.loads(hub.content(SPACE, "api/overview.json"))["rows"]
        assert (row["symbol"], row["issued_at"], row["command"]) == ("BTCUSDT", "2025-06-06T00:00:00Z", "")
        assert json.loads(hub.content(SPACE, "api/extremes/BTCUSDT/1h.json"))["first"]["dtype"] == "float16"

        assert json.loads(hub.content(SPACE, "api/leaderboard.json"))["rows"]

        again = {**SCOPE, "as_of": "2025-06-07T12:00"}
        del again["since"]
        told = []
        assert run_forecast(ForecastSpec(**again, space=SPACE), told.append)["exit"] == 0
        assert any(line.startswith("page: ") and "new commit" in line for line in told)
        (row,) = json.loads(hub.content(SPACE, "api/overview.json"))["rows"]
        assert row["issued_at"] == "2025-06-07T00:00:00Z"
        commits = len(hub.repos[SPACE].commits)
        (_, before), (_, after) = hub.repos[SPACE].commits[-2:]
        assert before["plotly/plotly.min.js"] == after["plotly/plotly.min.js"]
        run_forecast(ForecastSpec(**again, space=SPACE), told.append)
        assert len(hub.repos[SPACE].commits) == commits
        assert any("nothing had changed" in line for line in told)

        # A Hub that refuses is a failure of the run, whose forecasts stay.
        monkeypatch.setenv("HF_TOKEN", "hf_wrong")
        told.clear()
        result = run_forecast(
            ForecastSpec(**{**again, "as_of": "2025-06-08T12:00"}, space=SPACE), told.append
        )
        assert (result["new_rows"], result["exit"]) == (10, 3)
        assert any(line.startswith("FAILED the run in publish: ") for line in told)


def test_a_night_without_a_token_fails_before_it_trains(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_TOKEN", "")
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "none"))
    with pytest.raises(CpbError) as caught:
        run_train_all(RunSpec(**SCOPE, preset="smoke", space=SPACE), quiet)
    assert caught.value.code == "no-token"
    assert not (tmp_path / "data" / "sim" / "klines").exists()


@pytest.mark.parametrize("option", ["repo", "space"])
def test_a_night_whose_place_is_public_although_it_asks_for_private_fails_before_it_trains(
    monkeypatch, tmp_path, option
):
    with fake_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        publish_page({"index.html": b"<html>"}, SPACE, "sim")
        with pytest.raises(CpbError, match="alice/prices exists and is public") as caught:
            run_train_all(RunSpec(**SCOPE, preset="smoke", private=True, **{option: SPACE}), quiet)
        assert caught.value.code == "public"
        assert len(hub.repos[SPACE].commits) == 2
    assert not (tmp_path / "data" / "sim" / "klines").exists()


def test_a_place_that_is_private_missing_or_out_of_reach_lets_a_night_begin(monkeypatch):
    with fake_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        publish_page({"index.html": b"<html>"}, SPACE, "sim", private=True)
        places = {"repo": "alice/missing", "space": SPACE}
        check_publishable(RunSpec(private=True, **places))
        hub.faults.append(("GET", "/api/spaces", 503))
        check_publishable(RunSpec(private=True, **places))
    check_publishable(RunSpec(private=True, **places))


def test_a_public_space_is_refused_before_the_repository_beside_it_has_anything(monkeypatch, capsys):
    with fake_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        publish_page({"index.html": b"<html>"}, SPACE, "sim")
        monkeypatch.setattr("tasks.steps.publish", lambda *_, **__: pytest.fail("published"))
        words = ["publish", "--repo", "alice/models", "--space", SPACE, "--private"]
        monkeypatch.setattr("sys.argv", ["cpb", *words])
        with pytest.raises(SystemExit) as left:
            main()
    assert left.value.code == 1
    assert f"{SPACE} exists and is public" in capsys.readouterr().err
