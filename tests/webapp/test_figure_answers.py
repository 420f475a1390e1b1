"""The figures that the service answers with: of what is stored, in both themes, for plotly."""

import numpy as np
import polars as pl
import pytest

from tasks.forecasting.daily_sums import read_sums, record_by_day
from tasks.forecasting.record import read_summary
from tasks.judging.member import MemberScore
from tasks.judging.score_files import score_file
from tasks.storage.sealed import seal
from tests.tools.page_service import client_of
from tests.tools.webapp_store import BTC, SIM_BTC, small_home, track
from webapp import figures

EVERY = [
    *(f"/api/figures/{name}/BTC/1h" for name in ("forecast", "record", "coverage", "decisions")),
    "/api/figures/board",
    "/api/figures/coins",
    "/api/figures/compare?models=har,gru",
]


def figure(client, path, **query):
    answer = client.get(path, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_heat_map_has_the_models_in_the_order_of_the_board(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(small_home(tmp_path, BTC))
    track(tmp_path, [BTC], (("gru", 1.013), ("har", 0.981)))  # the worse one was trained first
    with client_of(tmp_path) as client:
        board = [row["architecture"] for row in client.get("/api/leaderboard").json()["rows"]]
        assert figure(client, "/api/figures/coins", timeframe="1h")["data"][0]["x"] == board == ["har", "gru"]


def trace(drawn_figure, name):
    return next(t for t in drawn_figure["data"] if t.get("name") == name)


@pytest.mark.parametrize("path", EVERY)
def test_every_figure_is_one_that_plotly_knows_in_both_themes(mixed_client, path):
    from plotly.graph_objects import Figure

    path += "&theme=" if "?" in path else "?theme="
    light, dark = (mixed_client.get(path + theme) for theme in ("light", "dark"))
    assert light.text != dark.text
    assert '"$' not in light.text  # every role has become a colour
    Figure(light.json())  # refuses attributes that plotly does not know
    assert light.json()["layout"]["meta"]["simulated"] is False


def test_the_forecast_is_drawn_over_the_candles_that_are_asked_for(client):
    drawn_figure = figure(client, "/api/figures/forecast/BTC/1h", limit=100)
    candles = client.get("/api/candles/BTC/1h?limit=100").json()["candles"]
    forecast = client.get("/api/forecast/BTC/1h").json()

    (drawn,) = [t for t in drawn_figure["data"] if t["type"] == "candlestick"]
    assert drawn["close"] == pytest.approx([c["close"] for c in candles], rel=1e-6)
    medians = [t for t in drawn_figure["data"] if t.get("name") == "median"]
    assert forecast["steps"][-1]["target_time"][:16] in str(medians[0]["x"][-1])


def test_an_earlier_forecast_moves_the_candles_to_where_it_lies(client):
    listed = client.get("/api/forecasts/BTC/1h").json()["forecasts"]
    newest = figure(client, "/api/figures/forecast/BTC/1h", limit=20)
    old = figure(
        client, "/api/figures/forecast/BTC/1h", limit=20, issued_at=listed[0]["issued_at"], earlier=0
    )
    near = figure(
        client, "/api/figures/forecast/BTC/1h", limit=20, issued_at=listed[-2]["issued_at"], earlier=2
    )

    def times(drawn_figure):
        return next(t for t in drawn_figure["data"] if t["type"] == "candlestick")["x"]

    assert listed[0]["issued_at"][:13] in {t[:13] for t in times(old)}
    assert trace(old, "actual close")
    assert times(near) == times(newest)
    earlier = trace(near, "earlier forecasts (80 %)")
    assert earlier["x"].count(None) == 2
    # none overlaps the shown one
    assert max(t for t in earlier["x"] if t)[:16] <= listed[-2]["issued_at"][:16]


def test_figures_of_a_market_are_of_that_market(mixed_client):
    spot = figure(mixed_client, "/api/figures/board")
    simulated = figure(mixed_client, "/api/figures/board", market="sim")

    assert simulated["layout"]["meta"]["simulated"] is True
    assert "har" in str(spot["data"])
    assert "har" not in str(simulated["data"])


def test_compared_models_show_the_ratio_of_each_coin(client):
    drawn_figure = figure(client, "/api/figures/compare", models="har,gru", timeframe="1h")
    assert [trace(drawn_figure, name)["x"] for name in ("har", "gru")] == [[0.981, 0.981], [1.013, 1.013]]
    assert figure(client, "/api/figures/coins", timeframe="15m")["data"][0]["y"] == ["PEPEUSDT"]


def test_two_models_are_tested_on_the_same_forecasts(client, monkeypatch, tmp_path):
    assert (
        "No paired test" in figure(client, "/api/figures/compare", models="har,gru")["layout"]["meta"]["note"]
    )
    rng = np.random.default_rng(0)
    base = rng.gamma(2, size=2000)
    rows = []
    for key, name, losses in (("a0", "har", base), ("b0", "gru", base * rng.normal(1.1, 0.1, 2000))):
        folder = tmp_path / f"fleets/{key}/members/BTCUSDT-1h"
        folder.mkdir(parents=True)
        times = np.arange(2000) * 3_600_000_000
        score = MemberScore(
            "BTCUSDT", "1h", name, {}, times, {"crps": losses}, {"crps": np.ones(10)}, 3_600_000_000
        )
        score.to_npz(score_file(folder))
        seal(folder)
        rows.append(
            {
                "symbol": "BTCUSDT",
                "timeframe": "1h",
                "architecture": name,
                "preset": "smoke",
                "crps_ratio": 1.0,
                "test_span": "a/b",
                "key": f"{key}/BTCUSDT-1h",
            }
        )
    monkeypatch.setattr(figures.runs, "coin_rows", lambda *_: rows)
    note = figures.compare(tmp_path, "spot", "1h", "har,gru")["layout"]["meta"]["note"]
    assert note.startswith(
        "Paired test on the same forecasts of 1 coin: har is better than gru (CRPS ratio 0.9"
    )
    assert "p<0.001, n=2,000" in note
    rows[1]["key"] = "../BTCUSDT-1h"
    assert "No paired test" in figures.compare(tmp_path, "spot", "1h", "har,gru")["layout"]["meta"]["note"]


def test_what_is_missing_or_not_there_is_a_sentence(client):
    assert client.get("/api/figures/compare").json()["detail"] == "models is missing; /docs says what it is"
    answer = client.get("/api/nothing")
    assert (answer.status_code, answer.json()["detail"]) == (
        404,
        "there is no /api/nothing; /docs lists what there is",
    )


@pytest.mark.parametrize("models", ["", "har", "har,gru,lstm", ",", "har, "])
def test_two_models_must_be_named(client, models):
    answer = client.get("/api/figures/compare", params={"models": models})
    assert answer.status_code == 422
    assert "two architectures" in answer.json()["detail"]


def test_losses_are_those_of_the_run(client):
    run_id = client.get("/api/models/BTC/1h").json()["models"][0]["run_id"]
    assert figure(client, f"/api/figures/losses/{run_id}")["layout"]["meta"]["alt"]
    missing = client.get(f"/api/figures/losses/{'0' * 32}")
    assert (missing.status_code, "/api/models" in missing.json()["detail"]) == (404, True)
    for odd in ("..%2f..%2fetc", "x" * 32, "0" * 31):
        assert client.get(f"/api/figures/losses/{odd}").status_code in (404, 422)


def test_figures_without_a_store_of_runs_say_so(tmp_path, monkeypatch):
    monkeypatch.chdir(small_home(tmp_path, SIM_BTC))
    with client_of(tmp_path) as client:
        for path in ("/api/figures/board", "/api/figures/coins", "/api/figures/decisions/BTC/1h"):
            assert figure(client, path)["data"] == []
        assert figure(client, "/api/figures/record/BTC/1h")["layout"]["meta"]["live"] is False


def test_the_rolling_figures_are_of_the_last_thirty_days_alone(recorded):
    home = recorded / "data"
    sums = read_sums(home, BTC)
    now = read_summary(home, "spot").made_at
    days = record_by_day(sums, BTC, now, live=True)
    day = days["day"][40]
    part = sums.filter(pl.col("live"), pl.col("day") <= day, pl.col("day") > day - pl.duration(days=30))
    row = days.row(40, named=True)
    assert row["rolling"] == pytest.approx(part["paired_crps"].sum() / part["ref_crps"].sum())
    assert row["coverage_80"] == pytest.approx(part["covered_80"].sum() / part["rows"].sum())
    empty = record_by_day(sums.clear(), BTC, now, live=True)
    assert (len(empty), empty.columns) == (0, days.columns)
