import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from schemas.errors import DamagedError
from schemas.identity import SeriesId
from tasks.storage.model_folder import file_digests
from tasks.tracking.champions import Registered, champions, model_folder
from tests.tools.registering import register_champion
from tests.tools.tracked_members import fleet_of, log_member, member, series


@pytest.fixture
def trained(store, folder):
    """Two finished runs with a model folder, of one fleet."""
    fleet = fleet_of()
    return [log_member(fleet.run_id, member(folder, key=k)) for k in ("a", "b")]


def test_the_alias_follows_the_best_and_keeps_the_reason(store, trained):
    assert register_champion(series("BTCUSDT", "1h"), trained[0], reason="first") == "1"
    assert register_champion(series("BTCUSDT", "1h"), trained[1], reason="lower ratio") == "2"

    version = store.client.get_model_version_by_alias("cpb-BTCUSDT-1h", "champion")
    assert (str(version.version), version.run_id) == ("2", trained[1])
    assert version.tags["reason"] == "lower ratio"


def test_promoting_twice_makes_no_second_version(store, trained):
    for _ in range(2):
        assert register_champion(series("BTCUSDT", "1h"), trained[0], reason="best") == "1"

    assert len(store.client.search_model_versions("name = 'cpb-BTCUSDT-1h'")) == 1


def test_an_older_version_can_come_back(store, trained):
    for run_id in (trained[0], trained[1], trained[0]):
        register_champion(series("BTCUSDT", "1h"), run_id, reason="best now")

    assert str(store.client.get_model_version_by_alias("cpb-BTCUSDT-1h", "champion").version) == "1"


def test_one_universal_run_may_serve_many_coins(store, trained):
    register_champion(series("ETHUSDT", "1h"), trained[0], metrics={"test_crps_ratio": 0.91})
    register_champion(series(), trained[0], metrics={"test_crps_ratio": 0.95}, tags={"verdict": "better"})

    listed = champions(store)

    assert [c.series for c in listed] == [series("BTCUSDT"), series("ETHUSDT")]
    assert [c.metrics["test_crps_ratio"] for c in listed] == [0.95, 0.91]
    assert listed[0].tags["verdict"] == "better"
    assert listed[0].model_version == "cpb-BTCUSDT-1h/1"
    assert (listed[0].architecture, listed[0].preset, listed[0].verdict) == ("gru", "smoke", "better")
    assert (listed[0].folder / "model.safetensors").is_file()


def test_champions_can_be_narrowed(store, trained):
    register_champion(series("ETHUSDT", "1h"), trained[0])
    register_champion(series("BTCUSDT", "15m"), trained[0])

    assert [c.series for c in champions(store, [series(timeframe="15m")])] == [series(timeframe="15m")]
    assert len(champions(store, market="spot")) == 2
    assert champions(store, market="um") == []
    assert champions(store, []) == []


def test_a_um_run_never_touches_spots_champion(store, folder, trained):
    register_champion(series(), trained[0])
    future = log_member(fleet_of("um", market="um").run_id, member(folder, market="um"))

    assert register_champion(series(market="um"), future) == "1"

    by_market = {c.series.market: c for c in champions(store)}
    assert (by_market["spot"].run_id, by_market["spot"].model_version) == (trained[0], "cpb-BTCUSDT-1h/1")
    assert (by_market["um"].run_id, by_market["um"].model_version) == (future, "cpb-um-BTCUSDT-1h/1")
    assert [c.series.market for c in champions(store, market="um")] == ["um"]
    assert store.client.get_model_version("cpb-um-BTCUSDT-1h", "1").tags["market"] == "um"


def test_a_registered_model_of_somebody_else_is_left_alone(store, trained):
    store.client.create_registered_model("cpb-notes")
    version = store.client.create_model_version("cpb-notes", "/nowhere", await_creation_for=0)
    store.client.set_registered_model_alias("cpb-notes", "champion", version.version)

    assert champions(store) == []


def break_weights(folder, how):
    path = folder / "model.safetensors"
    data = path.read_bytes()
    if how == "gone":
        path.unlink()
    elif how == "cut":
        path.write_bytes(data[: len(data) // 2])
    else:
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


@pytest.mark.parametrize("how", ["gone", "cut", "one bit"])
def test_a_damaged_champion_says_so_and_the_others_are_still_good(store, trained, how):
    register_champion(series("BTCUSDT"), trained[0])
    register_champion(series("ETHUSDT"), trained[1])
    break_weights(champions(store, [series("BTCUSDT")])[0].folder, how)

    damaged, good = champions(store)

    assert good.damage == ""
    good.check()
    assert "model.safetensors" in damaged.damage
    with pytest.raises(DamagedError, match=r"`cpb train-all .*` trains it again") as caught:
        damaged.check()
    assert (caught.value.code, caught.value.field) == ("damaged", str(damaged.folder))


def test_the_config_of_a_version_without_recorded_digests_is_checked(store, trained):
    store.client.delete_tag(trained[0], "files")
    register_champion(series(), trained[0])
    (champion,) = champions(store)
    assert (champion.digests, champion.damage) == ({}, "")

    (champion.folder / "config.json").write_text("{")
    assert "config.json" in champions(store)[0].damage


@pytest.fixture
def server(folder, tmp_path, monkeypatch):
    """Stands in for a tracking server's artifact store; counts what is fetched."""
    import mlflow

    fetched = []

    def download(source, dst_path, tracking_uri):
        (Path(dst_path) / "model").mkdir()
        for file in folder.iterdir():
            (Path(dst_path) / "model" / file.name).write_bytes(file.read_bytes())
        (Path(dst_path) / "model/metrics.json").write_text(tracking_uri)
        fetched.append(tracking_uri)
        return f"{dst_path}/model"

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(mlflow.artifacts, "download_artifacts", download)
    return fetched


def remote(run_id="a" * 32, digests=None):
    source = "mlflow-artifacts:/1/x"
    version = SimpleNamespace(
        version="1", run_id=run_id, source=source, tags={"files": json.dumps(digests or {})}
    )
    return Registered.of(SeriesId("spot", "BTCUSDT", "1h"), version, None)


def test_champions_of_two_servers_do_not_meet_in_the_cache(server):
    for uri, run_id in (("http://a", "a" * 32), ("http://b", "b" * 32), ("http://a", "a" * 32)):
        folder, damage = model_folder(uri, remote(run_id))
        assert (folder / "metrics.json").read_text() == uri
        assert damage == ""
    assert server == ["http://a", "http://b"]


def test_a_damaged_copy_of_a_servers_champion_is_fetched_again(server, folder):
    version = remote(digests=file_digests(folder))
    copied, _ = model_folder("http://a", version)
    break_weights(copied, "cut")

    again, damage = model_folder("http://a", version)

    assert (again, damage, len(server)) == (copied, "", 2)
