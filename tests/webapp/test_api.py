import pytest
from webapp_store import VERDICT, champion, write_candles

from schemas.forecasts import QUANTILE_COLUMNS
from webapp.reading import _overall


def test_health_counts_series(client):
    answer = client.get("/healthz").json()

    assert (answer["status"], answer["series"]) == ("ok", 3)
    assert answer["newest_forecast"] == "2025-06-09T12:00:00Z"


def test_symbols_lists_series_with_their_newest_forecast(client):
    answer = client.get("/api/symbols").json()

    assert [(s["symbol"], s["timeframe"]) for s in answer] == [
        ("BTCUSDT", "1h"), ("ETHUSDT", "1h"), ("PEPEUSDT", "15m"),
    ]  # fmt: skip
    assert answer[0]["model_version"] == "cpb-BTCUSDT-1h/1"


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


def test_candles_can_end_earlier(client):
    candles = client.get(
        "/api/candles/BTCUSDT/1h", params={"limit": 3, "until": "2025-05-30T06:00:00"}
    ).json()

    assert [c["close_time"][:13] for c in candles["candles"]] == [
        "2025-05-30T04",
        "2025-05-30T05",
        "2025-05-30T06",
    ]


def test_candles_go_back_over_many_months(client, filled):
    close = write_candles(filled / "data", "OLDUSDT", "1d", rows=900)

    candles = client.get("/api/candles/OLDUSDT/1d?limit=880").json()["candles"]

    assert [c["close"] for c in candles] == pytest.approx(list(close[-880:]))


def test_prices_keep_all_their_digits(client):
    answer = client.get("/api/forecast/PEPEUSDT/15m").json()

    assert 1e-6 < answer["last_close"] < 1e-4
    assert answer["steps"][0]["q50"] == pytest.approx(answer["last_close"], rel=1e-12)


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


def test_simulated_champions_do_not_count_beside_real_ones(tmp_path):
    real, simulated = champion(tmp_path), champion(tmp_path, "ETHUSDT", ratio=1.02)
    simulated.tags["source"] = "sim"

    assert "1 of 1 models have a lower CRPS" in _overall([real, simulated])
    assert "0 of 1 models have a lower CRPS" in _overall([simulated])
    assert _overall([]) is None


def test_ledger_has_hit_rates_and_the_newest_rows(client):
    answer = client.get("/api/ledger/ETHUSDT/1h?limit=5").json()

    assert answer["summary"]["scored"] > 100
    assert 0.4 < answer["summary"]["coverage_80"] <= 1
    assert len(answer["rows"]) == 5
    assert answer["live"]["scored"] == 0  # written long after their candles closed: replays
    assert not any(r["live"] for r in answer["rows"])
    assert all((r["q10"] <= r["realised_close"] <= r["q90"]) == r["covered_80"] for r in answer["rows"])


@pytest.mark.parametrize("path", ["forecast", "ledger", "candles"])
@pytest.mark.parametrize("series", ["XRPUSDT/1h", "BTCUSDT/7m", "BTCUSDT/15m", "a;b/1h", "..%2f..%2fetc/1h"])
def test_an_unknown_series_is_404_with_a_sentence(client, path, series):
    answer = client.get(f"/api/{path}/{series}")

    assert answer.status_code == 404
    assert isinstance(answer.json()["detail"], str)


@pytest.mark.parametrize("limit", ["0", "-1", "abc", "5001", "1.5"])
@pytest.mark.parametrize("path", ["ledger", "candles"])
def test_a_bad_limit_is_422(client, path, limit):
    answer = client.get(f"/api/{path}/BTCUSDT/1h?limit={limit}")

    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"] == ["query", "limit"]


def test_an_empty_store_answers_politely(empty_client):
    assert empty_client.get("/healthz").json() == {"status": "ok", "series": 0, "newest_forecast": None}
    assert empty_client.get("/api/symbols").json() == []
    board = empty_client.get("/api/leaderboard").json()
    assert (board["rows"], board["champions"]) == ([], [])
    assert "train first" in board["note"]
    assert "cpb forecast" in empty_client.get("/api/forecast/BTCUSDT/1h").json()["detail"]


def test_the_description_is_complete_and_the_page_loads_nothing_foreign(client):
    paths = client.get("/openapi.json").json()["paths"]
    assert set(paths) == {
        "/healthz", "/api/symbols", "/api/forecast/{symbol}/{timeframe}", "/api/candles/{symbol}/{timeframe}",
        "/api/leaderboard", "/api/ledger/{symbol}/{timeframe}",
    }  # fmt: skip
    page = client.get("/")
    assert page.headers["content-security-policy"].startswith("default-src 'self'")
    for name in ("page.js", "chart.js", "format.js", "page.css", "icon.svg"):
        assert client.get(f"/static/{name}").status_code == 200
    assert client.get("/docs").status_code == 200


def test_reading_writes_nothing_but_the_read_cache(client, filled):
    def files():
        data = filled / "data"
        kept = (p for p in data.rglob("*") if data / "cache" not in (p, *p.parents))
        return {p: p.stat().st_mtime_ns for p in kept}

    before = files()
    for path in ("/api/symbols", "/api/forecast/BTC/1h", "/api/candles/BTC/1h", "/api/ledger/BTC/1h"):
        assert client.get(path).status_code == 200
    assert files() == before
