import logging
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from test_runs import fleet_of, member

from schemas.errors import CpbError
from tasks.tracking import champions, log_member, register_champion, registry


@pytest.fixture
def trained(store, tmp_path):
    """Two finished runs with a model folder, of one fleet."""
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    fleet = fleet_of()
    return [log_member(fleet.run_id, member(folder, key=k)) for k in ("a", "b")]


def test_the_alias_follows_the_best_and_keeps_the_reason(store, trained):
    assert register_champion("BTCUSDT", "1h", trained[0], reason="first") == "1"
    assert register_champion("BTCUSDT", "1h", trained[1], reason="lower ratio") == "2"

    version = store.client.get_model_version_by_alias("cpb-BTCUSDT-1h", "champion")
    assert (str(version.version), version.run_id) == ("2", trained[1])
    assert version.tags["reason"] == "lower ratio"


def test_promoting_twice_makes_no_second_version(store, trained):
    for _ in range(2):
        assert register_champion("BTCUSDT", "1h", trained[0], reason="best") == "1"

    assert len(store.client.search_model_versions("name = 'cpb-BTCUSDT-1h'")) == 1


def test_an_older_version_can_come_back(store, trained):
    for run_id in (trained[0], trained[1], trained[0]):
        register_champion("BTCUSDT", "1h", run_id, reason="best now")

    assert str(store.client.get_model_version_by_alias("cpb-BTCUSDT-1h", "champion").version) == "1"


def test_one_universal_run_may_serve_many_coins(trained):
    register_champion("ETHUSDT", "1h", trained[0], metrics={"test_crps_ratio": 0.91})
    register_champion(
        "BTCUSDT", "1h", trained[0], metrics={"test_crps_ratio": 0.95}, tags={"verdict": "better"}
    )

    found = champions()

    assert [c.symbol for c in found] == ["BTCUSDT", "ETHUSDT"]
    assert [c.metrics["test_crps_ratio"] for c in found] == [0.95, 0.91]
    assert found[0].tags["verdict"] == "better"
    assert found[0].model_version == "cpb-BTCUSDT-1h/1"
    assert (found[0].folder / "model.safetensors").read_bytes() == b"weights"


def test_champions_can_be_narrowed(trained):
    register_champion("ETHUSDT", "1h", trained[0])
    register_champion("BTCUSDT", "15m", trained[0])

    assert [c.symbol for c in champions(["BTCUSDT"])] == ["BTCUSDT"]
    assert [c.timeframe for c in champions(timeframes=["1h"])] == ["1h"]


def test_mlflow_itself_finds_the_model(store, trained, tmp_path, monkeypatch):
    import mlflow

    monkeypatch.setenv("MLFLOW_TRACKING_URI", store.uri)
    register_champion("BTCUSDT", "1h", trained[0])

    mlflow.artifacts.download_artifacts("models:/cpb-BTCUSDT-1h@champion", dst_path=str(tmp_path / "got"))

    assert (tmp_path / "got" / "model.safetensors").read_bytes() == b"weights"


def test_a_champion_without_files_is_left_out_with_a_warning(trained, caplog):
    register_champion("BTCUSDT", "1h", trained[0])
    register_champion("ETHUSDT", "1h", trained[1])
    shutil.rmtree(next(c.folder for c in champions() if c.symbol == "BTCUSDT"))

    with caplog.at_level(logging.WARNING):
        assert [c.symbol for c in champions()] == ["ETHUSDT"]

    assert "cpb-BTCUSDT-1h" in caplog.text


def test_a_failed_run_cannot_be_champion(store):
    run_id = log_member(fleet_of().run_id, member(reason="broken"))

    with pytest.raises(CpbError, match="FAILED"):
        register_champion("BTCUSDT", "1h", run_id)


def test_champions_of_two_servers_do_not_meet_in_the_cache(tmp_path, monkeypatch):
    import mlflow

    def download(source, dst_path, tracking_uri):
        (Path(dst_path) / "model").mkdir()
        (Path(dst_path) / "model/model.safetensors").write_text(tracking_uri)
        return f"{dst_path}/model"

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(mlflow.artifacts, "download_artifacts", download)
    for server, run_id in (("http://a", "a" * 32), ("http://b", "b" * 32), ("http://a", "a" * 32)):
        version = SimpleNamespace(
            name="cpb-BTCUSDT-1h", version="1", run_id=run_id, source="mlflow-artifacts:/1/x"
        )
        folder = registry._folder(SimpleNamespace(uri=server), version)
        assert (folder / "model.safetensors").read_text() == server
