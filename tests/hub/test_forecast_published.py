"""`cpb forecast --model hub:USER/NAME`: published models on fresh candles, beside the forecast store."""

import json
import sys
from datetime import UTC, datetime, timedelta

import polars as pl
import pytest
from fake_hub import TOKEN, fake_hub
from hub_models import REPO, publish_models, trained

from cpbmodels import Series, from_hub
from cpbmodels.data.wide import with_market
from flows import cli
from flows.forecast_published import CANDLES, run_forecast_published
from flows.runner import Runner
from schemas.errors import CpbError, UsageError
from schemas.forecasts import check_forecasts
from schemas.handover import IngestResult
from schemas.identity import SeriesId
from schemas.scope import ScopeSpec
from tasks.hub import published as published_module
from tasks.market.klines import read_klines
from tasks.signals.feature_files import newest_series


@pytest.fixture
def hub(monkeypatch, tmp_path):
    with fake_hub() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setenv("CPB_HOME", str(tmp_path / "data"))
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
        yield server


@pytest.fixture
def published(hub, tmp_path):
    """The commit of a repository with models of the simulated BTC and ETH, and of the real BTC."""
    models = [
        trained(tmp_path / "a", market="sim"),
        trained(tmp_path / "b", "ETHUSDT", market="sim", seed=1),
        trained(tmp_path / "c", seed=2),
    ]
    return publish_models(tmp_path, *models)


SIM = ScopeSpec(source="sim", since="2025-04")


def forecast(spec=SIM, model=f"hub:{REPO}", out=None, steps=None):
    said = []
    return run_forecast_published(spec, model, out, steps or Runner(), said.append), said


def test_every_published_model_of_the_scope_is_forecast_and_none_stored(published, tmp_path):
    told, said = forecast(out=str(tmp_path / "rows.parquet"))

    assert (told["exit"], told["commit"]) == (0, published)
    assert [one["symbol"] for one in told["rows"]] == ["BTCUSDT"] * 10 + ["ETHUSDT"] * 10
    rows = check_forecasts(pl.read_parquet(tmp_path / "rows.parquet"))
    assert rows.height == 20
    versions = [f"hub:{REPO}@{published[:12]}/sim-{symbol}/1h" for symbol in ("BTCUSDT", "ETHUSDT")]
    assert rows["model_version"].unique(maintain_order=True).to_list() == versions
    assert rows["issued_at"].unique().to_list() == [datetime(2025, 6, 1, tzinfo=UTC)]
    assert told["rows"][-1]["q50"] == rows["q50"][-1]
    assert [line for line in said if "BTCUSDT 1h" in line]  # the real BTC's model was not asked for
    assert not (tmp_path / "data/sim/forecasts").exists()


def test_coins_and_revision_choose(hub, published):
    hub.repos[REPO].commit(hub.repos[REPO].files | {"notes.txt": next(iter(hub.repos[REPO].files.values()))})

    told, _ = forecast(ScopeSpec(source="sim", since="2025-04", coins="ETH"), f"hub:{REPO}@{published}")

    assert told["commit"] == published
    assert {one["symbol"] for one in told["rows"]} == {"ETHUSDT"}


def test_one_damaged_model_is_its_failure_alone(hub, published):
    files = hub.repos[REPO].files
    hub.repos[REPO].commit(
        files | {"sim-BTCUSDT/1h/model.safetensors": files["sim-ETHUSDT/1h/model.safetensors"]}
    )

    told, _ = forecast()

    assert told["exit"] == 3
    assert {one["symbol"] for one in told["rows"]} == {"ETHUSDT"}
    (failed,) = told["failed"]
    assert failed.startswith("sim BTCUSDT 1h")


def test_a_published_average_reads_the_market_of_the_homes_coins_and_works_from_one_coins_candles(
    hub, tmp_path, monkeypatch
):
    coins = [f"{coin}USDT" for coin in ("BTC", "ETH", "SOL")]
    models = [trained(tmp_path / coin, coin, market="sim", architecture="average") for coin in coins]
    commit = publish_models(tmp_path, *models, trained(tmp_path / "other", seed=1))
    told, _ = forecast()
    scope, names = SIM.scope, [SeriesId("sim", coin, "1h") for coin in coins]
    held = [newest_series(scope.home, one, since=scope.since) for one in names]
    model = from_hub(REPO, "BTCUSDT", "1h", commit, "sim")

    assert [row["q05"] for row in told["rows"][:10]] == pytest.approx(
        model.forecast(with_market(held)[0]).close[0.05].tolist(), rel=1e-6
    )
    monkeypatch.setattr(published_module, "newest_markets", lambda *_, **__: {})
    alone, _ = forecast(ScopeSpec(source="sim", since="2025-04", coins="BTC"))
    candles = read_klines(scope.home, names[0], since=scope.since)
    # What a stranger gets from a table of one coin's candles.
    series = Series.from_frame(candles, "BTCUSDT", "1h")
    assert [row["q05"] for row in alone["rows"]] == pytest.approx(
        model.forecast(series).close[0.05].tolist(), rel=1e-5
    )
    assert told["rows"][0]["q05"] != pytest.approx(alone["rows"][0]["q05"], rel=1e-5)
    card = (tmp_path / "tree/README.md").read_text()
    assert "3 of these models also read what all coins of their timeframe share" in card


def test_without_one_forecast_it_is_an_error(hub, published):
    with pytest.raises(CpbError) as caught:
        forecast(ScopeSpec(source="sim", since="2025-05-30", as_of="2025-05-31", coins="BTC"))
    assert caught.value.code == "no-forecast"


@pytest.mark.parametrize(
    ("spec", "model", "code"),
    [
        (ScopeSpec(source="sim", coins="SOL"), f"hub:{REPO}", "no-model"),
        (ScopeSpec(market="um"), f"hub:{REPO}", "no-model"),
        (SIM, "hub:alice/nothing", "hub"),
        (SIM, f"hub:{REPO}@v9", "hub"),
        (SIM, REPO, "model"),
        (SIM, "hub:alice", "model"),
        (SIM, "hub:", "model"),
        (SIM, "models:/cpb-BTCUSDT-1h", "model"),
    ],
)
def test_what_cannot_be_is_one_sentence_before_any_candle_is_fetched(published, tmp_path, spec, model, code):
    with pytest.raises(CpbError) as caught:
        forecast(spec, model)

    assert (caught.value.code, caught.value.field) == (code, "model")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "data").exists()


def test_out_is_a_parquet_file_in_a_folder_that_can_be_written(published, tmp_path):
    (tmp_path / "file").touch()
    for name in ("rows.csv", "file/rows.parquet"):
        with pytest.raises(UsageError):
            forecast(out=str(tmp_path / name))


class Asked(Runner):
    """Steps that only note which candles were asked for."""

    def __init__(self):
        self.scopes = []

    def one(self, step, scope, tail):
        self.scopes.append(scope)
        return IngestResult(series=tuple(scope.series))


@pytest.mark.parametrize(("source", "bounded"), [(None, True), ("https://mirror.example.org", False)])
def test_binance_itself_is_asked_for_the_newest_candles_alone(published, source, bounded):
    steps = Asked()
    with pytest.raises(CpbError):  # no candles came
        forecast(ScopeSpec(source=source, as_of="2025-06-01"), steps=steps)

    (scope,) = steps.scopes
    assert [str(one) for one in scope.series] == ["BTCUSDT 1h"]
    assert scope.since == (scope.as_of - timedelta(hours=CANDLES) if bounded else None)


def cpb(monkeypatch, capsys, *words):
    monkeypatch.setattr(sys, "argv", ["cpb", "forecast", *words])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return end.value.code, capsys.readouterr().out


def test_the_command_shows_every_step_or_json(published, monkeypatch, capsys):
    words = ("--model", f"hub:{REPO}", "--source", "sim", "--since", "2025-04", "--coins", "BTC")

    code, lines = cpb(monkeypatch, capsys, *words)
    assert code == 0
    assert lines.startswith("BTCUSDT 1h; ")
    assert [line.split()[0] for line in lines.splitlines()[-11:] if line.strip()] == [
        str(n) for n in range(1, 11)
    ]
    code, text = cpb(monkeypatch, capsys, *words, "--json")
    assert code == 0
    assert [row["step"] for row in json.loads(text)["rows"]] == list(range(1, 11))


def test_out_belongs_to_published_models(monkeypatch, capsys):
    code, text = cpb(monkeypatch, capsys, "--out", "rows.parquet", "--json")
    assert (code, json.loads(text)["field"]) == (2, "out")
