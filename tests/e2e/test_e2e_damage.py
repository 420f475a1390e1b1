"""Damaged files as a user meets them: what is derived is made again by the named command, the rest is restored."""

import sqlite3
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from webapp.app import create_app

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SCOPE = ("--coins", "BTC,ETH", "--timeframes", "1h", "--source", "sim", "--since", "2025-02")
TRAIN = (
    "train-all",
    *SCOPE,
    "--architectures",
    "linear,robust-har",
    "--preset",
    "smoke",
    "--as-of",
    "2025-05-20",
)


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 16
    path.write_bytes(content)


def champion_folder(folder):
    database = sqlite3.connect(folder / "mlruns/mlflow.db")
    (source,) = database.execute(
        "SELECT source FROM model_versions WHERE name = 'cpb-sim-BTCUSDT-1h' ORDER BY version DESC LIMIT 1"
    ).fetchone()
    database.close()
    return Path(source.removeprefix("file://"))


def one_of_each(folder):
    """A file of each kind that belongs to BTC."""
    sim = folder / "data/sim"
    fleet = next(p for p in (sim / "fleets").iterdir() if "robust-har" in (p / "job.json").read_text())
    member = fleet / "members/sim-BTCUSDT-1h"
    return [
        sim / "klines/interval=1h/symbol=BTCUSDT/2025-04.parquet",
        *(sim / "features/interval=1h/symbol=BTCUSDT").glob("*.parquet"),
        *(sim / "forecasts/interval=1h/symbol=BTCUSDT").glob("*.parquet"),
        *(sim / "ledger/interval=1h/symbol=BTCUSDT").glob("*.parquet"),
        fleet / "result.json",
        member / "model/config.json",
        *member.glob("score-*.npz"),
        champion_folder(folder) / "model.safetensors",
    ]


def ask_page(folder):
    """Return every answer of the API that is no 200."""
    series = [
        f"/api/{what}/{coin}/1h" for what in ("forecast", "candles", "ledger") for coin in ("BTC", "ETH")
    ]
    with TestClient(create_app(folder / "data"), base_url="http://127.0.0.1") as client:
        asked = {path: client.get(path) for path in ("/healthz", "/api/symbols", "/api/leaderboard", *series)}
    return {path: answer.json()["detail"] for path, answer in asked.items() if answer.status_code != 200}


@pytest.mark.parametrize("damage", [cut, flip])
def test_damage_of_every_kind_at_once(cpb, tmp_path, monkeypatch, damage):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlruns/mlflow.db")
    assert cpb(*TRAIN).returncode == 0
    assert cpb("forecast", *SCOPE, "--as-of", "2025-05-22").returncode == 0
    assert cpb.json("verify")["damaged"] == []
    files = one_of_each(tmp_path)
    kept = {
        path: path.read_bytes() for path in files if path.name == "2025-05.parquet"
    }  # forecasts and scores
    for path in files:
        damage(path)

    refused = ask_page(tmp_path)
    assert set(refused) <= {"/api/forecast/BTC/1h", "/api/candles/BTC/1h", "/api/ledger/BTC/1h"}
    assert all("cpb " in sentence for sentence in refused.values())
    damaged = cpb.json("verify", code=1)["damaged"]
    assert len(damaged) >= 7  # a fleet without a readable record is judged by that alone
    assert all(line["command"].startswith(("cpb ", "rm -f ", "restore it ")) for line in damaged)

    forecast = cpb("forecast", *SCOPE, "--as-of", "2025-05-23", "--json")
    assert forecast.returncode == 3
    published = cpb("publish", "--dry-run", "--market", "sim")
    assert published.returncode == 3
    board = cpb("leaderboard")
    assert board.returncode == 0
    assert "Traceback" not in forecast.stderr + published.stderr + board.stderr
    assert "FAILED sim BTCUSDT 1h in forecast: " in forecast.stderr
    assert "ETHUSDT" not in forecast.stderr
    assert not list((tmp_path / "data/sim/hub").glob("*BTC*"))

    mended = cpb(*TRAIN)  # which ingests, so that the damaged month is fetched anew
    assert mended.returncode in (0, 3), mended.stderr
    assert "Traceback" not in mended.stderr
    named = {line["path"] for line in cpb.json("verify", code=1)["damaged"]}
    # The sums are made again with the month that they are of.
    sums = "sim/ledger/interval=1h/symbol=BTCUSDT/daily.parquet"
    assert named - {sums} == {path.relative_to(tmp_path / "data").as_posix() for path in kept}
    forecast = cpb("forecast", *SCOPE, "--as-of", "2025-05-24")
    assert forecast.returncode == 3
    assert "restore it from a backup" in forecast.stderr
    for path, content in kept.items():
        path.write_bytes(content)
    assert cpb("forecast", *SCOPE, "--as-of", "2025-05-24").returncode == 0
    assert cpb.json("verify")["damaged"] == []
    assert ask_page(tmp_path) == {}
