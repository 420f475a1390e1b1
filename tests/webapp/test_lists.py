"""The answers that the dashboard is made of: overview, forecasts, models, decisions, runs, changes, CSV, caching."""

import csv
import io
import json
from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl
import pytest

from schemas.handover import JobMember, SeriesRecord, ShardJob, SplitBounds
from schemas.identity import ModelId
from tasks.forecasting import chain
from tasks.storage.locks import locked
from tasks.tracking.decisions import keep_decision
from tasks.tracking.runs import start_parent
from tasks.tracking.store import open_store
from tasks.tracking.tags import KIND, STUDY
from tasks.training.shard import prepare
from tasks.training.shard_retention import ShardsInUse
from tests.tools.page_service import client_of
from tests.tools.webapp_store import (
    BTC,
    ETH,
    PEPE,
    SIM_BTC,
    START,
    UM_BTC,
    VERDICT,
    decision,
    fill,
    fill_record,
    forecast_at,
    small_home,
    write_candles,
)
from webapp import answers, cache, store_cache
from webapp.formats import table

TABLES = [
    *("/api/leaderboard", "/api/overview"),
    *(f"/api/{name}/BTC/1h" for name in ("forecast", "forecasts", "candles", "ledger", "decisions")),
]


def table_of(answer):
    return list(csv.DictReader(io.StringIO(answer.text)))


def test_the_overview_has_a_row_for_each_series_of_one_market(mixed_client):
    body = mixed_client.get("/api/overview").json()

    assert (body["market"], body["simulated"], body["note"]) == ("spot", False, None)
    assert [(r["symbol"], r["timeframe"]) for r in body["rows"]] == [
        ("BTCUSDT", "1h"),
        ("ETHUSDT", "1h"),
        ("PEPEUSDT", "15m"),
    ]
    assert [(m["market"], m["series"], m["forecasts"]) for m in body["markets"]] == [
        ("spot", 3, 3),
        ("um", 1, 1),
        ("sim", 1, 1),
    ]
    assert [m["simulated"] for m in body["markets"]] == [False, False, True]
    assert {r["market"] for r in mixed_client.get("/api/overview?market=sim").json()["rows"]} == {"sim"}


def test_a_row_of_the_overview_says_what_the_other_answers_say(client):
    row = client.get("/api/overview").json()["rows"][0]
    forecast = client.get("/api/forecast/BTC/1h").json()
    candles = client.get("/api/candles/BTC/1h?limit=48").json()["candles"]
    last = forecast["steps"][-1]

    assert (row["issued_at"], row["model_version"]) == (forecast["issued_at"], forecast["model_version"])
    assert row["range_80_low"] == pytest.approx(100 * (last["q10"] / forecast["last_close"] - 1))
    assert row["range_80_high"] == pytest.approx(100 * (last["q90"] / forecast["last_close"] - 1))
    assert row["range_at"] == last["target_time"]
    assert row["sparkline"] == [c["close"] for c in candles]
    assert (row["last_close"], row["closed_at"]) == (candles[-1]["close"], candles[-1]["close_time"])
    assert row["change_1d"] == pytest.approx(100 * (candles[-1]["close"] / candles[-25]["close"] - 1))
    assert (row["verdict"], row["architecture"], row["champion"]) == (VERDICT, "har", "cpb-BTCUSDT-1h/1")
    assert row["record_live"] is False  # replays, and said so
    assert row["record_verdict"] == "too few to tell"
    assert "cpb forecast --coins BTCUSDT --timeframes 1h`" in row["stale"]
    assert row["command"] == "cpb forecast --coins BTCUSDT --timeframes 1h"


def test_a_row_of_the_overview_has_prices_of_the_same_close_as_its_per_cents(client, touchable, monkeypatch):
    row = client.get("/api/overview").json()["rows"][1]
    forecast = client.get("/api/forecast/ETH/1h").json()
    last = forecast["steps"][-1]
    assert (row["origin_close"], row["q10"], row["q90"]) == (forecast["last_close"], last["q10"], last["q90"])
    assert row["range_80_low"] == pytest.approx(100 * (row["q10"] / row["origin_close"] - 1))
    assert (row["closed_at"] > row["issued_at"], row["last_close"] == row["origin_close"]) == (True, False)
    assert (row["stop_5_down"], row["stop_5_up"]) == (None, None)  # its model has no table
    monkeypatch.chdir(touchable)
    with client_of(touchable) as other:
        rows = {row["symbol"]: row for row in other.get("/api/overview").json()["rows"]}
        stops = {stop["side"]: stop for stop in other.get("/api/touch/BTC/1h").json()["stops"][-2:]}
    assert [rows["BTCUSDT"][f"stop_5_{side}"] for side in ("down", "up")] == [
        stops[side]["price"] for side in ("down", "up")
    ]
    assert {stop["probability"] for stop in stops.values()} == {0.05}
    assert rows["ETHUSDT"]["stop_5_up"] is None


def test_a_width_is_compared_with_the_thirty_days_before_where_seven_have_forecasts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fill(tmp_path / "data", ETH)  # forecasts of the last 60 hours
    fill_record(tmp_path / "data", BTC, days=40)
    walk = [c["close"] for c in candles_of(tmp_path, "BTC")]
    first = START + timedelta(hours=24 * 40 + 24 - len(walk))
    wide = forecast_at(BTC, len(walk) - 1, np.array(walk), sigma=0.01, start=first, version=2)
    chain.append(tmp_path / "data", "spot", "forecasts", {BTC: wide})
    with client_of(tmp_path) as client:
        row, young = client.get("/api/overview").json()["rows"]
        listed = client.get("/api/forecasts/BTC/1h?limit=5000").json()["forecasts"][:-1]
    assert (young["width_ratio"], young["width_days"]) == (None, 3)
    since = datetime.fromisoformat(row["issued_at"]) - timedelta(days=30)
    times = {t[:10] for f in listed if datetime.fromisoformat(t := f["issued_at"]) >= since}
    assert row["width_days"] == len(times)
    assert row["width_ratio"] == pytest.approx(2.0, rel=0.02)  # made_forecasts are of half the volatility


def candles_of(folder, coin):
    with client_of(folder) as client:
        return client.get(f"/api/candles/{coin}/1h?limit=5000").json()["candles"]


@pytest.mark.parametrize(("home", "live"), [("filled", False), ("recorded", True)])
def test_what_came_true_of_the_last_day_is_what_the_ledger_says(home, live, request, monkeypatch):
    folder = request.getfixturevalue(home)
    monkeypatch.chdir(folder)
    with client_of(folder) as client:
        row = client.get("/api/overview").json()["rows"][0]
        rows = client.get("/api/ledger/BTC/1h?limit=5000").json()["rows"]
    since = datetime.fromisoformat(row["closed_at"]) - timedelta(days=1)
    due = [r for r in rows if datetime.fromisoformat(r["target_time"]) > since]
    assert row["day_live"] is live
    assert (row["day_closes"], row["day_inside"]) == (len(due), sum(r["covered_80"] for r in due))
    assert len(due) >= 10
    assert {r["live"] for r in due} == {live}


def test_a_run_is_active_while_it_holds_the_shards(own_folder):
    with client_of(own_folder) as other:
        assert other.get("/api/runs").json()["active"] is False
        before = other.get("/api/changes").json()["runs"]
        with ShardsInUse(own_folder / "data"):  # as a backtest does
            assert other.get("/api/runs").json()["active"] is True
            assert other.get("/api/changes").json()["runs"] != before
        assert other.get("/api/runs").json()["active"] is False


def test_one_command_renews_all_that_is_stale_and_names_every_coin(client, tmp_path, monkeypatch):
    assert client.get("/api/overview").json()["stale"] == (
        "refresh them with `cpb forecast --coins BTCUSDT,ETHUSDT,PEPEUSDT --timeframes 1h,15m`, "
        "adding the --source of the candles unless that was Binance Vision"
    )
    monkeypatch.chdir(tmp_path)
    write_candles(tmp_path / "data", UM_BTC)
    with client_of(tmp_path) as other:  # there are no champions to forecast with
        told = other.get("/api/overview?market=um").json()
    assert "refresh it with `cpb ingest --coins BTCUSDT --timeframes 1h --market um`" in told["stale"]
    assert "`cpb train-all --market um`" in told["note"]
    assert told["rows"][0]["command"] == "cpb train-all --coins BTCUSDT --timeframes 1h --market um"


def test_origin_and_time_of_storing_are_two_fields(client, recorded, monkeypatch):
    row = client.get("/api/overview").json()["rows"][0]
    newest = client.get("/api/forecasts/BTC/1h").json()["forecasts"][-1]
    assert (row["issued_at"], row["made_at"], row["live"]) == (newest["issued_at"], newest["made_at"], False)
    assert row["made_at"] > row["issued_at"]
    monkeypatch.chdir(recorded)
    with client_of(recorded) as other:
        assert other.get("/api/overview").json()["rows"][0]["live"] is True


def test_the_record_in_the_overview_is_the_live_one_where_there_is_one(recorded, monkeypatch):
    monkeypatch.chdir(recorded)
    with client_of(recorded) as client:
        (row,) = client.get("/api/overview").json()["rows"]
        record = client.get("/api/ledger/BTC/1h?limit=0").json()["record"]

    live = next(e for e in record if e["kind"] == "series" and e["live"])
    assert row["record_live"] is True
    assert (row["record_ratio"], row["record_low"], row["record_high"], row["record_verdict"]) == (
        live["crps_ratio"],
        live["crps_ratio_low"],
        live["crps_ratio_high"],
        live["verdict"],
    )


def test_real_candles_beside_simulated_forecasts_are_the_default_and_it_says_what_is_missing(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(small_home(tmp_path, SIM_BTC))
    write_candles(tmp_path / "data", ETH)
    with client_of(tmp_path) as client:
        body = client.get("/api/overview").json()
        simulated = client.get("/api/overview?market=sim").json()
        assert client.get("/api/leaderboard").json()["market"] == "spot"
        assert client.get("/api/forecast/BTC/1h").status_code == 404

    assert (body["market"], body["simulated"]) == ("spot", False)
    assert [(r["symbol"], r["issued_at"]) for r in body["rows"]] == [("ETHUSDT", None)]
    assert "cpb train-all" in body["note"]
    assert "simulated market" in body["note"]
    assert [(m["market"], m["forecasts"]) for m in body["markets"]] == [("spot", 0), ("sim", 1)]
    assert [(r["symbol"], r["simulated"]) for r in simulated["rows"]] == [("BTCUSDT", True)]


def test_an_empty_store_says_what_to_do_in_every_list(empty_client):
    overview = empty_client.get("/api/overview").json()
    assert (overview["rows"], overview["markets"]) == ([], [])
    assert "cpb demo" in overview["note"]
    assert empty_client.get("/api/runs").json()["trainings"] == []
    for path in ("/api/runs", "/api/models/BTC/1h", "/api/decisions/BTC/1h"):
        assert "train first" in empty_client.get(path).json()["note"]
    assert empty_client.get("/api/forecasts/BTC/1h").status_code == 404


def test_forecasts_are_listed_newest_last_and_each_can_be_asked_for(client):
    listed = client.get("/api/forecasts/BTC/1h?limit=5").json()["forecasts"]

    assert len(listed) == 5
    assert [f["issued_at"] for f in listed] == sorted(f["issued_at"] for f in listed)
    assert listed[-1]["issued_at"] == client.get("/api/forecast/BTC/1h").json()["issued_at"]
    assert {(f["role"], f["live"], f["model_version"]) for f in listed} == {
        ("champion", False, "cpb-BTCUSDT-1h/1")
    }
    earlier = client.get("/api/forecast/BTC/1h", params={"issued_at": listed[0]["issued_at"]}).json()
    assert earlier["issued_at"] == listed[0]["issued_at"]
    assert earlier["steps"][0]["step"] == 1
    before = client.get("/api/forecasts/BTC/1h", params={"until": listed[0]["issued_at"], "limit": 2}).json()
    assert before["forecasts"][-1] == listed[0]


def test_a_forecast_of_an_instant_without_one_is_404_with_a_sentence(client):
    answer = client.get("/api/forecast/BTC/1h?issued_at=2025-06-09T11:59:00Z")
    assert answer.status_code == 404
    assert "/api/forecasts/BTCUSDT/1h" in answer.json()["detail"]


def test_models_are_the_newest_of_each_architecture_the_best_first(mixed_client):
    body = mixed_client.get("/api/models/BTC/1h").json()

    assert [(m["architecture"], m["serves"], m["model_version"]) for m in body["models"]] == [
        ("har", "champion", "cpb-BTCUSDT-1h/1"),
        ("gru", None, None),
    ]
    assert body["models"][0]["metrics"]["test_crps_ratio"] == 0.981
    simulated = mixed_client.get("/api/models/BTC/1h?market=sim").json()
    assert [m["architecture"] for m in simulated["models"]] == ["gru"]
    assert simulated["simulated"] is True


def test_decisions_are_listed_newest_first(own_folder):
    store = open_store()
    for made in (decision(0), decision(2, "switched"), decision(1, series=ETH)):
        keep_decision(store, made)
    with client_of(own_folder) as client:
        body = client.get("/api/decisions/BTC/1h").json()
        made = client.get("/api/decisions/BTC/1h?limit=1").json()

    assert [(d["outcome"], d["decided_at"][:10]) for d in body["decisions"]] == [
        ("switched", "2025-06-03"),
        ("kept", "2025-06-01"),
    ]
    assert [d["outcome"] for d in made["decisions"]] == ["switched"]


def job(series, epochs_seed=1):
    span = (datetime(2025, 1, 1, tzinfo=UTC), datetime(2025, 2, 1, tzinfo=UTC))
    record = SeriesRecord(series=series, path="p", digest="d", file_digest="f", rows=1, first_us=0, last_us=1)
    member = JobMember(
        model=ModelId("gru", "smoke", series, epochs_seed),
        features=record,
        bounds=SplitBounds(timeframe=series.timeframe, train=span, validation=span, test=span),
    )
    return ShardJob(
        architecture="gru",
        preset="smoke",
        seeds=1,
        overrides={},
        device="cpu",
        profile="auto",
        dtype="float32",
        members=(member,),
        code="c",
    )


def test_a_training_at_work_is_shown_with_its_progress(own_folder):
    folder = prepare(own_folder / "data", job(BTC))
    prepare(own_folder / "data", job(ETH))  # nobody trains it
    progress = {
        "architecture": "gru",
        "stage": "training",
        "epoch": 3,
        "epochs": 10,
        "lr": 0.1,
        "windows_per_s": 500.0,
        "seconds": 2.0,
        "memory": {},
        "members": 1,
        "train_loss": 1.5,
        "val_loss": 1.25,
        "share": 0.3,
        "eta_s": 14.0,
    }
    with client_of(own_folder) as client, locked(folder / "lock"):
        (training,) = client.get("/api/runs").json()["trainings"]
        assert (training["epoch"], training["symbols"], training["simulated"]) == (None, ["BTCUSDT"], False)
        before = client.get("/api/changes").json()
        (folder / "progress.json").write_text(json.dumps(progress))
        body = client.get("/api/runs").json()
        after = client.get("/api/changes").json()

    (training,) = body["trainings"]
    assert (training["epoch"], training["epochs"], training["eta_seconds"]) == (3, 10, 14.0)
    assert (training["val_loss"], training["windows_per_s"]) == (1.25, 500.0)
    assert [(r["name"], r["status"], r["market"]) for r in body["runs"]] == [
        ("train-all", "FINISHED", "spot")
    ]
    assert {name for name in after if after[name] != before[name]} == {"runs"}
    with client_of(own_folder) as client:
        assert client.get("/api/runs").json()["trainings"] == []


def test_a_search_is_among_the_runs(own_folder):
    start_parent(
        "tune-1",
        {"coins": "BTC", "timeframes": "1h", "architectures": "gru"},
        {KIND: STUDY, "market": "spot"},
        "tune",
    )
    with client_of(own_folder) as client:
        first, second = client.get("/api/runs").json()["runs"]
    assert (first["name"], first["kind"], first["status"], first["coins"]) == (
        "tune",
        "study",
        "RUNNING",
        ["BTC"],
    )
    assert second["kind"] == "flow"


def test_a_run_says_what_was_asked_for_as_lists_and_one_that_died_is_killed(own_folder, monkeypatch):
    asked = {"coins": "BTC, ETH", "timeframes": "1h", "architectures": ["har", "gru"]}
    start_parent(
        "second", asked, {"market": "spot", "as_of": "newest", "candles_until": "2025-05-31"}, "second"
    )
    with client_of(own_folder) as client:
        (run,) = [r for r in client.get("/api/runs").json()["runs"] if r["name"] == "second"]
        monkeypatch.setattr("tasks.storage.process_ids.ProcessId.is_alive", lambda self: False)
    store_cache._results.clear()  # a death is no write: it is seen after `_MAX_AGE_S`
    with client_of(own_folder) as client:
        (dead,) = [r for r in client.get("/api/runs").json()["runs"] if r["name"] == "second"]

    assert {name: run[name] for name in asked} == {
        "coins": ["BTC", "ETH"],
        "timeframes": ["1h"],
        "architectures": ["har", "gru"],
    }
    assert (run["status"], run["as_of"]) == ("RUNNING", "2025-05-31")
    assert (dead["status"], "died" in dead["reason"]) == ("KILLED", True)


def test_changes_names_the_part_that_has_changed(tmp_path, monkeypatch):
    monkeypatch.chdir(small_home(tmp_path, BTC))
    with client_of(tmp_path) as client:
        first = client.get("/api/changes").json()
        assert client.get("/api/changes").json() == first
        write_candles(tmp_path / "data", ETH)
        second = client.get("/api/changes").json()
    assert {name for name in first if first[name] != second[name]} == {"candles"}


def test_answers_are_kept_until_a_look_at_the_stored_data_finds_a_change(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fill(tmp_path / "data", BTC, rows=200)
    with client_of(tmp_path) as client:
        old = client.get("/api/forecast/BTC/1h").json()
        assert client.get("/api/overview").json()["rows"][0]["issued_at"] == old["issued_at"]
        fill(tmp_path / "data", BTC, rows=300)
        monkeypatch.setattr(cache, "_CHECK_S", 3600)
        assert client.get("/api/forecast/BTC/1h").json() == old
        monkeypatch.setattr(cache, "_CHECK_S", 0)
        new = client.get("/api/forecast/BTC/1h").json()
        assert client.get("/api/overview").json()["rows"][0]["issued_at"] == new["issued_at"]
        last = client.get("/api/candles/BTC/1h?limit=1").json()["candles"][-1]
    assert new["issued_at"] == last["close_time"] > old["issued_at"]


def test_a_page_is_told_of_a_change_only_once_answers_have_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fill(tmp_path / "data", BTC, rows=200)
    with client_of(tmp_path) as client:
        old = client.get("/api/forecast/BTC/1h").json()
        monkeypatch.setattr(cache, "_CHECK_S", 3600)
        fill(tmp_path / "data", BTC, rows=300)
        before = client.get("/api/changes").json()
        assert client.get("/api/forecast/BTC/1h").json() == old
        monkeypatch.setattr(cache, "_CHECK_S", 0)
        assert client.get("/api/changes").json()["forecasts"] != before["forecasts"]
        assert client.get("/api/forecast/BTC/1h").json() != old


@pytest.mark.parametrize("path", TABLES)
def test_csv_has_the_rows_of_the_answer_and_a_name_that_says_what_they_are(mixed_client, path):
    query = {"format": "csv", "market": "sim"}
    answer = mixed_client.get(path, params=query)
    body = mixed_client.get(path, params=query | {"format": "json"}).json()
    name = path.split("/")[2]
    rows = table_of(answer)

    assert answer.headers["content-type"].startswith("text/csv")
    file = answer.headers["content-disposition"]
    assert name in file
    assert "simulated" in file
    field = {"forecast": "steps", **dict.fromkeys(("leaderboard", "overview", "ledger"), "rows")}.get(
        name, name
    )
    assert len(rows) == len(body[field]) > 0
    for cells, row in zip(rows, body[field], strict=True):
        for column, value in row.items():
            if isinstance(value, str | float) and not isinstance(value, bool):
                assert cells[column] == str(value)
    assert {row["market"] for row in rows} == {"sim"}


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\tx", "\rx"])
def test_a_text_that_would_be_a_formula_is_escaped(text):
    board = answers.Leaderboard(
        market="spot", rows=[{"text": text, "number": -1.5}], columns={}, champions=[]
    )
    written = table(board).body.decode()
    (row,) = csv.DictReader(io.StringIO(written, newline=""))
    assert row == {"market": "spot", "text": f"'{text}", "number": "-1.5"}


def test_candles_are_what_is_stored_to_the_last_digit(client, filled):
    stored = pl.read_parquet(PEPE.folder(filled / "data", "klines") / "*.parquet").tail(200)
    answered = client.get("/api/candles/PEPE/15m?limit=200").json()["candles"]

    assert [datetime.fromisoformat(c["open_time"]) for c in answered] == stored["open_time"].to_list()
    for name in ("open", "high", "low", "close", "volume"):
        assert [c[name] for c in answered] == stored[name].to_list()
    for candle in answered:
        opened, closed = (datetime.fromisoformat(candle[n]) for n in ("open_time", "close_time"))
        assert closed - opened == timedelta(minutes=15)


def test_a_table_of_a_symbol_that_is_not_latin_has_a_name_for_every_client():
    answer = answers.Candles(market="spot", symbol="币安人生USDT", timeframe="1h", candles=[])
    assert table(answer).headers["content-disposition"] == (
        'attachment; filename="cpb-spot-____USDT-1h-candles.csv"'
    )


def test_the_bundle_is_the_installed_one_compressed_and_kept_while_it_is_the_same(client):
    path = "/plotly/plotly.min.js"
    plain = client.get(path, headers={"Accept-Encoding": "identity"})
    packed = client.get(path)
    assert plain.headers["content-type"].startswith("text/javascript")
    assert b"plotly.js" in plain.content[:200]
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.content == plain.content
    assert client.get(path, headers={"If-None-Match": packed.headers["etag"]}).status_code == 304
