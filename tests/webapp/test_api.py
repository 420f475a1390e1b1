from datetime import UTC, datetime, timedelta

import polars as pl
import pytest

from cpbmodels.data.prediction import QUANTILE_COLUMNS
from schemas.identity import SeriesId
from tasks.forecasting.months import month_bytes
from tests.tools.packaged import weights_sha256
from tests.tools.page_service import client_of
from tests.tools.webapp_store import BTC, ETH, SIM_BTC, UM_BTC, VERDICT, fill, small_home, write_candles

SERIES_PATHS = ["forecast", "ledger", "candles"]


def test_health_counts_series_and_says_that_old_data_is_stale(client):
    answer = client.get("/healthz")

    assert answer.status_code == 200
    body = answer.json()
    assert (body["status"], body["series"]) == ("stale", 3)
    assert body["newest_forecast"] == "2025-06-09T12:00:00Z"
    assert len(body["stale"]) == 3
    assert "`cpb forecast --coins BTCUSDT --timeframes 1h`, adding the --source" in body["stale"][0]


def test_health_is_ok_where_candles_and_forecasts_are_new(tmp_path):
    start = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(hours=300)
    fill(tmp_path / "data", BTC, start=start)
    fill(tmp_path / "data", ETH, start=start - timedelta(days=40))  # stopped trading long ago
    with client_of(tmp_path) as client:
        assert client.get("/healthz").json()["status"] == "ok"


def test_simulated_data_is_never_stale(tmp_path):
    small_home(tmp_path, SIM_BTC)
    with client_of(tmp_path) as client:
        body = client.get("/healthz").json()
    assert (body["status"], body["series"], body["stale"]) == ("ok", 1, [])


def test_a_forecast_after_candles_that_stand_still_says_so_everywhere(tmp_path):
    for series, standing in ((BTC, 6), (ETH, 5)):
        fill(tmp_path / "data", series, standing=standing)
    with client_of(tmp_path) as client:
        btc, eth = (client.get(f"/api/forecast/{coin}/1h").json() for coin in ("BTC", "ETH"))
        health = client.get("/healthz").json()
        rows = {row["symbol"]: row for row in client.get("/api/overview").json()["rows"]}
    assert [answer["weights_sha256"] for answer in (btc, eth)] == [
        weights_sha256(f"{s.registered}/1") for s in (BTC, ETH)
    ]
    assert (btc["standing"], eth["standing"], eth["standing_note"]) == (6, 5, None)
    assert btc["standing_note"].startswith("the last 6 candles before the forecast stand still")
    assert health["standing"] == [f"BTCUSDT 1h: {btc['standing_note']}"]
    assert (rows["BTCUSDT"]["standing"], rows["BTCUSDT"]["standing_note"]) == (6, btc["standing_note"])
    assert (rows["ETHUSDT"]["standing"], rows["ETHUSDT"]["standing_note"]) == (5, None)


def test_a_forecast_of_an_older_version_does_not_know_its_weights_and_candles(tmp_path, monkeypatch):
    fill(tmp_path / "data", BTC)
    for path in (tmp_path / "data/forecasts").rglob("*.parquet"):
        rows = pl.read_parquet(path, hive_partitioning=False).drop("weights_sha256", "standing")
        path.write_bytes(month_bytes(path, rows))
    with client_of(tmp_path) as client:
        answer = client.get("/api/forecast/BTC/1h").json()
        (row,) = client.get("/api/overview").json()["rows"]
    assert [answer[name] for name in ("weights_sha256", "standing", "standing_note")] == [None] * 3
    assert (row["standing"], row["standing_note"]) == (None, None)


@pytest.mark.parametrize("name", ["BTCUSDT", "btc", "BTC"])
def test_forecast_holds_ten_steps_of_nineteen_levels(client, name):
    answer = client.get(f"/api/forecast/{name}/1h").json()

    assert (answer["symbol"], answer["timeframe"], answer["issued_at"]) == (
        "BTCUSDT",
        "1h",
        "2025-06-09T12:00:00Z",
    )
    assert [s["step"] for s in answer["steps"]] == list(range(1, 11))
    assert answer["steps"][0]["target_time"] == "2025-06-09T13:00:00Z"
    for step in answer["steps"]:
        levels = [step[q] for q in QUANTILE_COLUMNS]
        assert levels == sorted(levels)
        assert step["q50_low"] <= min(step["q50_open"], step["q50"])
        assert step["q50_high"] >= max(step["q50_open"], step["q50"])


def test_candles_are_newest_last_and_end_where_the_forecast_begins(client):
    forecast = client.get("/api/forecast/BTCUSDT/1h").json()
    candles = client.get("/api/candles/BTCUSDT/1h?limit=50").json()["candles"]

    assert len(candles) == 50
    assert [c["open_time"] for c in candles] == sorted(c["open_time"] for c in candles)
    assert candles[-1]["close_time"] == forecast["issued_at"]
    assert candles[-1]["close"] == forecast["last_close"]


def test_candles_go_back_over_many_months(tmp_path):
    close = write_candles(tmp_path / "data", SeriesId("spot", "OLDUSDT", "1d"), rows=900)

    with client_of(tmp_path) as client:
        candles = client.get("/api/candles/OLDUSDT/1d?limit=880").json()["candles"]

    assert [c["close"] for c in candles] == pytest.approx(list(close[-880:]))


def test_leaderboard_and_champions_come_from_mlflow(client):
    answer = client.get("/api/leaderboard").json()

    hourly = [r for r in answer["rows"] if r["timeframe"] == "1h"]
    assert [(r["architecture"], r["crps_ratio"], r["members"]) for r in hourly] == [
        ("har", 0.981, 2),
        ("gru", 1.013, 2),
    ]
    champion = next(c for c in answer["champions"] if c["symbol"] == "BTCUSDT")
    assert champion["verdict"] == VERDICT
    assert "3 of 3 models have a lower CRPS" in answer["verdict"]


def test_a_request_without_a_market_is_answered_from_spot_alone(mixed_client):
    for path in SERIES_PATHS:
        answer = mixed_client.get(f"/api/{path}/BTC/1h").json()
        assert (answer["market"], answer["simulated"]) == ("spot", False)
    board = mixed_client.get("/api/leaderboard").json()
    assert (board["market"], {c["market"] for c in board["champions"]}) == ("spot", {"spot"})
    assert {row["market"] for row in board["rows"]} == {"spot"}


@pytest.mark.parametrize("series", [UM_BTC, SIM_BTC])
def test_each_market_answers_with_its_own(mixed_client, series):
    spot = mixed_client.get("/api/forecast/BTC/1h").json()

    query = {"market": series.market}
    forecast = mixed_client.get("/api/forecast/BTC/1h", params=query).json()
    candles = mixed_client.get("/api/candles/BTC/1h", params=query).json()
    ledger = mixed_client.get("/api/ledger/BTC/1h", params=query).json()

    assert {a["market"] for a in (forecast, candles, ledger)} == {series.market}
    assert {a["simulated"] for a in (forecast, candles, ledger)} == {series.market == "sim"}
    assert forecast["model_version"] == f"{series.registered}/1"
    assert candles["candles"][-1]["close"] == forecast["last_close"] != spot["last_close"]
    assert {r["model_version"] for r in ledger["rows"]} == {f"{series.registered}/1"}


def test_all_markets_are_listed_with_their_names_real_ones_first(mixed_client):
    listed = mixed_client.get("/api/symbols").json()

    assert [(s["market"], s["symbol"], s["simulated"]) for s in listed] == [
        ("spot", "BTCUSDT", False),
        ("spot", "ETHUSDT", False),
        ("spot", "PEPEUSDT", False),
        ("um", "BTCUSDT", False),
        ("sim", "BTCUSDT", True),
    ]


def test_champions_of_a_market_are_its_own(mixed_client):
    board = mixed_client.get("/api/leaderboard?market=sim").json()

    assert [(c["market"], c["architecture"], c["simulated"]) for c in board["champions"]] == [
        ("sim", "gru", True)
    ]
    assert [(row["market"], row["architecture"]) for row in board["rows"]] == [("sim", "gru")]
    none = mixed_client.get("/api/leaderboard?market=um").json()
    assert (none["rows"], none["champions"]) == ([], [])
    assert none["note"]


def test_where_all_is_simulated_that_is_what_is_shown_and_called_so(tmp_path, monkeypatch):
    monkeypatch.chdir(small_home(tmp_path, SIM_BTC))
    with client_of(tmp_path) as client:
        for path in SERIES_PATHS:
            answer = client.get(f"/api/{path}/BTC/1h").json()
            assert (answer["market"], answer["simulated"]) == ("sim", True)
        assert client.get("/api/leaderboard").json()["market"] == "sim"
        assert client.get("/api/forecast/BTC/1h?market=spot").status_code == 404


@pytest.mark.parametrize("kind", ["forecasts", "ledger"])
@pytest.mark.parametrize("cut", [0, 100])
def test_a_damaged_file_takes_nothing_else_with_it(tmp_path, monkeypatch, kind, cut):
    monkeypatch.chdir(small_home(tmp_path, BTC, ETH))
    path = BTC.folder(tmp_path / "data", kind) / "2025-06.parquet"
    path.write_bytes(path.read_bytes()[:cut])

    with client_of(tmp_path) as client:
        for good in (
            "/healthz",
            "/api/symbols",
            "/api/forecast/ETH/1h",
            "/api/ledger/ETH/1h",
            "/api/candles/BTC/1h",
        ):
            assert client.get(good).status_code == 200
        newest, health = client.get("/api/forecast/BTC/1h"), client.get("/healthz").json()
        assert newest.status_code == (404 if kind == "forecasts" else 200)
        if kind == "forecasts":
            said = newest.json()["detail"]
            assert "2025-06.parquet is damaged: " in said
            assert said in health["stale"]
            assert client.get("/api/touch/BTC/1h").json()["detail"] == said
            assert {row["symbol"]: row["stale"] for row in client.get("/api/overview").json()["rows"]}[
                "BTCUSDT"
            ] == said


def test_ledger_has_hit_rates_and_the_newest_rows(client):
    answer = client.get("/api/ledger/ETHUSDT/1h?limit=5").json()

    assert answer["summary"]["scored"] > 100
    assert 0.4 < answer["summary"]["coverage_80"] <= 1
    assert len(answer["rows"]) == 5
    assert answer["live"]["scored"] == 0  # written long after their candles closed: replays
    assert not any(r["live"] for r in answer["rows"])
    assert all((r["q10"] <= r["realised_close"] <= r["q90"]) == r["covered_80"] for r in answer["rows"])


@pytest.mark.parametrize("path", ["forecast", "forecasts", "candles", "ledger", "figures/record"])
def test_a_misspelt_coin_is_called_unknown(client, path):
    told = client.get(f"/api/{path}/BTX/1h").json()["detail"]
    assert (
        told == "the coin BTXUSDT is unknown: nothing of it is stored, only of BTC, ETH, PEPE; check the name"
    )
    assert "is unknown" not in client.get(f"/api/{path}/XRP/1h").text  # of the default universe


@pytest.mark.parametrize("path", SERIES_PATHS)
@pytest.mark.parametrize("series", ["XRPUSDT/1h", "BTCUSDT/7m", "BTCUSDT/15m", "a;b/1h", "..%2f..%2fetc/1h"])
def test_an_unknown_series_is_404_with_a_sentence(client, path, series):
    answer = client.get(f"/api/{path}/{series}")

    assert answer.status_code == 404
    assert isinstance(answer.json()["detail"], str)


def test_the_live_record_stands_beside_its_interval_and_apart_from_replays(recorded, monkeypatch):
    monkeypatch.chdir(recorded)
    with client_of(recorded) as client:
        answer = client.get("/api/ledger/BTC/1h?limit=0").json()

    assert answer["rows"] == []
    kinds = {(e["kind"], e["live"], e["model_version"]) for e in answer["record"]}
    first, second = "cpb-BTCUSDT-1h/1", "cpb-BTCUSDT-1h/2"
    assert kinds == {
        ("pooled", True, ""),
        ("pooled", False, ""),
        ("series", True, ""),
        ("series", False, ""),
        ("version", True, second),
        ("version", False, first),
    }
    live = next(e for e in answer["record"] if e["kind"] == "series" and e["live"])
    assert live["crps_ratio_low"] < live["crps_ratio"] < live["crps_ratio_high"] < 1
    assert live["verdict"].startswith("better than")
    replayed = next(e for e in answer["record"] if e["kind"] == "series" and not e["live"])
    assert (replayed["verdict"], replayed["crps_ratio_low"]) == ("too few to tell", None)
    assert answer["live"]["scored"] == live["rows"]
    assert answer["summary"]["scored"] == live["rows"] + replayed["rows"]


def test_before_the_first_scoring_there_is_no_record(tmp_path, monkeypatch):
    monkeypatch.chdir(small_home(tmp_path, BTC))
    (tmp_path / "data/ledger/summary.json").unlink()
    with client_of(tmp_path) as client:
        answer = client.get("/api/ledger/BTC/1h").json()
    assert (answer["recorded_at"], answer["record"]) == (None, [])
    assert (answer["summary"]["scored"], answer["summary"]["crps"]) == (0, None)
    assert answer["rows"]


@pytest.mark.parametrize("path", ["forecasts/BTC/1h", "candles/BTC/1h"])
@pytest.mark.parametrize(
    ("asked", "begins"),
    [
        ({"market": "mars"}, "market 'mars' cannot be used"),
        ({"limit": "-1"}, "limit '-1' cannot be used: "),
        ({"limit": "5001"}, "limit '5001' cannot be used: "),
        ({"until": "0999-12-31"}, "until "),
        ({"until": "9999-12-31T23:59:59-12:00"}, "until "),
        ({"until": "20250609"}, "until "),
        ({"until": ""}, "until "),
        ({"format": "xml"}, "format 'xml' cannot be used"),
    ],
)
def test_a_parameter_that_cannot_be_used_is_422_with_a_sentence(client, path, asked, begins):
    answer = client.get(f"/api/{path}", params=asked)

    assert answer.status_code == 422
    assert answer.json()["detail"].startswith(begins)


def test_an_empty_store_answers_politely(empty_client):
    assert empty_client.get("/healthz").json() == {
        "status": "empty",
        "series": 0,
        "newest_forecast": None,
        "stale": [],
        "standing": [],
    }
    assert empty_client.get("/api/symbols").json() == []
    board = empty_client.get("/api/leaderboard").json()
    assert (board["rows"], board["champions"]) == ([], [])
    assert "train first" in board["note"]
    assert "cpb forecast" in empty_client.get("/api/forecast/BTCUSDT/1h").json()["detail"]


def test_the_description_is_complete_and_the_page_loads_nothing_foreign(client):
    paths = client.get("/openapi.json").json()["paths"]
    assert set(paths) == {
        "/healthz",
        "/api/symbols",
        "/api/forecast/{symbol}/{timeframe}",
        "/api/candles/{symbol}/{timeframe}",
        "/api/leaderboard",
        "/api/ledger/{symbol}/{timeframe}",
        "/api/overview",
        "/api/runs",
        "/api/changes",
        "/api/forecasts/{symbol}/{timeframe}",
        "/api/touch/{symbol}/{timeframe}",
        "/api/first/{symbol}/{timeframe}",
        "/api/above/{symbol}/{timeframe}",
        "/api/extremes/{symbol}/{timeframe}",
        "/api/models/{symbol}/{timeframe}",
        "/api/decisions/{symbol}/{timeframe}",
        "/api/figures/{chart}",
        "/api/figures/compare",
        "/api/figures/losses/{run_id}",
        "/api/figures/forecast/{symbol}/{timeframe}",
        "/api/figures/{chart}/{symbol}/{timeframe}",
    }
    page = client.get("/")
    assert page.headers["content-security-policy"].startswith("default-src 'self'")
    for name in ("page.js", "price.js", "format.js", "page.css", "icon.svg", "docs.html", "docs.js"):
        assert client.get(f"/static/{name}").status_code == 200
    assert client.get("/docs").status_code == 200


def test_reading_writes_nothing(client, filled):
    def files():
        data = filled / "data"
        return {p: p.stat().st_mtime_ns for p in data.rglob("*")}

    before = files()
    for path in ("/api/symbols", "/api/forecast/BTC/1h", "/api/candles/BTC/1h", "/api/ledger/BTC/1h"):
        assert client.get(path).status_code == 200
    assert files() == before
