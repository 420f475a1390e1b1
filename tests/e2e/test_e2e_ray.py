"""The main job on real candles on a Ray cluster of two nodes: the members of the local engine, bit for bit."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from ray_cluster import ENVIRONMENT, SmallCluster

from tasks.storage.records import file_digest

MARKET = Path(__file__).resolve().parents[2] / "../shared/market"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(find_spec("ray") is None, reason="needs the extra ray"),
    pytest.mark.skipif(not MARKET.is_dir(), reason="needs ../shared/market"),
]


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    for name in [*ENVIRONMENT, "PYTHONPATH"]:
        monkeypatch.setenv(name, "")  # put back at the end
    made = SmallCluster()
    for name in "ab":
        made.add(tmp_path / name)
    yield made
    made.close()


def models(home):
    """Digest of each model's weights and reference, of its scores, and of the forecasts that were issued."""
    patterns = ("fleets/*/members/*/model/model.safetensors", "fleets/*/members/*/model/reference.json")
    patterns += ("fleets/*/members/*/score-*.npz",)
    return {
        path.relative_to(home).as_posix(): file_digest(path)
        for pattern in patterns
        for path in home.glob(pattern)
    }


def test_members_of_the_preset_smoke_are_those_of_one_machine(cpb, cluster, tmp_path):
    options = ["--as-of", "2025-06-06", "--coins", "BTC,ETH", "--timeframes", "1h", "--preset", "smoke"]
    trained = {}
    for engine in ("ray", "local"):
        home = tmp_path / engine
        home.mkdir()
        env = ENVIRONMENT | {
            "CPB_HOME": str(home / "data"),
            "MLFLOW_TRACKING_URI": f"sqlite:///{home}/mlflow.db",
        }
        env |= {"RAY_ADDRESS": cluster.address} if engine == "ray" else {}
        answer = cpb.json("train-all", "--source", MARKET, *options, "--engine", engine, **env)
        wanted = ("series", "members", "champions", "forecast_rows")
        assert [answer[name] for name in wanted] == [2, 10, 2, 20]
        assert answer["failures"] == []
        trained[engine] = models(home / "data")
    assert len(trained["local"]) == 30
    assert trained["ray"] == trained["local"]
