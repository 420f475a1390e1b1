"""Forecasts are made from the packaged folder, which follows the registry where that answers."""

import shutil

import numpy as np
import pytest

import cpbmodels
from schemas.errors import CpbError
from schemas.identity import ModelId, SeriesId
from tasks.hub.packaged import package, registry_differences, serving
from tasks.storage.home_version import VERSION_FILE
from tasks.storage.packaged import packaged_models
from tasks.storage.records import file_digest
from tasks.tracking.champions import champions, succeed, training_command
from tasks.tracking.registry import ALIAS, PREVIOUS, aliases_of, register
from tasks.tracking.runs import MemberRecord, log_members, start_fleet, start_parent
from tasks.tracking.store import open_store, take_store
from tasks.verify.models import packaged_behind, packaged_differences
from tasks.verify.verification import verify_all
from tests.tools.copied_store import record_place
from tests.tools.hub_models import series as walk
from tests.tools.hub_models import trained
from tests.tools.mlflow_engines import close_connections
from tests.tools.verifying import verify_champions

BTC, ETH = (SeriesId("spot", f"{coin}USDT", "1h") for coin in ("BTC", "ETH"))


def use(patch, place):
    patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{place}/mlflow.db")
    patch.setenv("CPB_HOME", str(place / "data"))


def with_champions(place, number):
    """A folder with a home and a store with two champions, to be copied."""
    with pytest.MonkeyPatch.context() as patch:
        use(patch, place)
        for series in (BTC, ETH):
            succeed(open_store(), add_version(place, series, number))
        close_connections(open_store().uri)
    return place


@pytest.fixture(scope="module")
def champion_store(tmp_path_factory):
    return with_champions(tmp_path_factory.mktemp("champions"), 1)


@pytest.fixture(scope="module")
def other_store(tmp_path_factory):
    return with_champions(tmp_path_factory.mktemp("others"), 3)


@pytest.fixture
def home(champion_store, tmp_path, monkeypatch):
    """A home without a packaged folder, and a store with two champions."""
    shutil.copytree(champion_store, tmp_path, dirs_exist_ok=True)
    record_place(tmp_path / "mlflow.db")
    use(monkeypatch, tmp_path)
    return tmp_path / "data"


def add_version(place, series, number=1):
    folder = place / f"model-{series.name}-{number}"
    folder.mkdir()
    trained(folder, series.symbol, seed=number)
    fleet = start_fleet(start_parent(f"night-{number}", {}).run_id, "har", f"night-{number}/har").run_id
    (run_id,) = log_members(
        fleet,
        [
            MemberRecord(
                key=f"{series.name}",
                model=ModelId("har", "smoke", series, number),
                device="cpu",
                preset="smoke",
                data_digest="abc",
                as_of="2025-06-06",
                folder=folder,
            )
        ],
    )
    return register(open_store(), series, run_id, tags={"verdict": f"verdict {number}"})


def versions(models):
    return {model.series: (model.model_version, model.verdict) for model in models}


def unreachable(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:hunter2@127.0.0.1:1")


def test_the_folder_follows_the_registry_and_forecasts_as_the_registered_model(home, monkeypatch):
    models, failures = serving(home, "spot")
    assert failures == []
    assert versions(models) == {s: (f"{s.registered}/1", "verdict 1") for s in (BTC, ETH)}
    assert versions(packaged_models(home, "spot", [ETH])) == {ETH: ("cpb-ETHUSDT-1h/1", "verdict 1")}
    assert serving(home, "um") == ([], [])
    assert [m.weights_sha256 for m in models] == [file_digest(m.folder / "model.safetensors") for m in models]
    (btc, _) = models
    registered = cpbmodels.load(home.parent / f"model-{BTC.name}-1").forecast(walk())
    assert np.array_equal(cpbmodels.load(btc.folder).forecast(walk()).candle, registered.candle)

    marker = home / "hub/README.md"
    before = marker.stat().st_ino
    serving(home, "spot")
    assert marker.stat().st_ino == before  # nothing has changed: nothing is written

    version = add_version(home.parent, BTC, 2)
    open_store().client.set_registered_model_alias(version.name, ALIAS, version.version)  # by hand
    assert versions(serving(home, "spot")[0])[BTC] == ("cpb-BTCUSDT-1h/2", "verdict 2")


def test_without_the_registry_the_folder_serves_with_a_warning(home, monkeypatch, caplog):
    before, _ = serving(home, "spot")
    unreachable(monkeypatch)
    assert serving(home, "spot") == (before, [])
    assert (
        "could not be brought up to date: the MLflow store http://127.0.0.1:1 cannot be used" in caplog.text
    )
    assert "hunter2" not in caplog.text
    shutil.rmtree(home / "hub")
    with pytest.raises(CpbError, match="cannot be used"):
        serving(home, "spot")


def test_a_home_of_another_version_is_refused_before_its_folder_is_promised_to_serve(home, caplog):
    serving(home, "spot")
    (home / VERSION_FILE).write_text("2")
    with pytest.raises(CpbError, match="another version of cpb"):
        serving(home, "spot")
    assert "could not be brought up to date" not in caplog.text


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_damaged_model_is_packaged_again_or_forecasts_nothing(home, monkeypatch, name):
    folder = serving(home, "spot")[0][0].folder
    intact = (folder / name).read_bytes()
    (folder / name).write_bytes(intact[:-1] + bytes([intact[-1] ^ 1]))
    with monkeypatch.context() as patch:
        unreachable(patch)
        (btc, eth) = serving(home, "spot")[0]
        with pytest.raises(cpbmodels.ModelError):
            cpbmodels.load(btc.folder)
        cpbmodels.load(eth.folder)
    serving(home, "spot")
    assert (folder / name).read_bytes() == intact


def test_exchanged_models_forecast_their_own_series(home, monkeypatch):
    before = versions(serving(home, "spot")[0])
    places = [home / "hub" / s.label / s.timeframe for s in (BTC, ETH)]
    for source, target in zip(places, ("a", "b"), strict=True):
        source.rename(home / target)
    (home / "a").rename(places[1])
    (home / "b").rename(places[0])
    unreachable(monkeypatch)
    assert versions(serving(home, "spot")[0]) == before


def test_a_damaged_registered_model_is_left_out_and_named_and_a_registry_without_champions_serves_none(home):
    version = add_version(home.parent, BTC, 2)
    succeed(open_store(), version)
    (weights,) = (home.parent / "artifacts").glob(f"{version.run_id}/artifacts/model.safetensors")
    weights.write_bytes(weights.read_bytes()[:-1])
    models, failures = serving(home, "spot")
    assert list(versions(models)) == [ETH]
    assert [(failure.series, failure.step) for failure in failures] == [(BTC, "publish")]
    for series in (BTC, ETH):
        open_store().client.delete_registered_model_alias(series.registered, ALIAS)
    assert serving(home, "spot") == ([], [])


def test_a_folder_with_a_file_of_a_person_is_not_replaced(home, monkeypatch, caplog):
    before = versions(serving(home, "spot")[0])
    (home / "hub/notes.txt").write_text("mine")
    succeed(open_store(), add_version(home.parent, BTC, 2))
    assert versions(serving(home, "spot")[0]) == before
    assert "notes.txt" in caplog.text


@pytest.fixture
def foreign(home, other_store, monkeypatch):
    """Serve from the home, then name another store, with other weights under the same versions."""
    own = [model.weights_sha256 for model in serving(home, "spot")[0]]
    shutil.copytree(other_store, home.parent / "other")
    record_place(home.parent / "other/mlflow.db")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{home.parent}/other/mlflow.db")
    return own


def test_another_store_never_replaces_the_packaged_models(home, foreign):
    before = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    with pytest.raises(CpbError) as caught:
        serving(home, "spot")
    assert caught.value.code == "other-store"
    assert {path: path.read_bytes() for path in home.rglob("*") if path.is_file()} == before


def test_a_home_whose_record_is_lost_takes_only_the_store_that_holds_its_models(home, foreign, monkeypatch):
    (home / "cpb-store.json").unlink()
    with pytest.raises(CpbError, match="does not hold the champions packaged in the home") as caught:
        serving(home, "spot")
    assert "(cpb-BTCUSDT-1h/1 and 1 more)" in str(caught.value)
    assert not (home / "cpb-store.json").exists()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{home.parent}/mlflow.db")
    assert [model.weights_sha256 for model in serving(home, "spot")[0]] == foreign
    assert (home / "cpb-store.json").exists()


def test_another_store_on_purpose_replaces_the_packaged_models(home, foreign):
    assert take_store().id == open_store().id
    models, failures = serving(home, "spot")
    assert failures == []
    assert not {model.weights_sha256 for model in models} & set(foreign)


def test_a_store_that_is_lost_leaves_the_packaged_models_at_work(home, monkeypatch, caplog):
    before, _ = serving(home, "spot")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{home.parent}/none.db")
    assert serving(home, "spot") == (before, [])
    assert f"{home.parent}/none.db does not exist, and the home " in caplog.text
    assert not (home.parent / "none.db").exists()


def differences(home):
    found = list(registry_differences(home, "spot", open_store()))
    sentences = packaged_behind(home, "spot")
    told = [d for d in found if any(d.reason in sentence for sentence in sentences)]
    assert told == [d for d in found if d.behind]  # what the store holds is told, and is no damage
    damage = [path for path, _, _ in packaged_differences(home, "spot")]
    assert damage == [d.folder for d in found if not d.behind]
    return {d.folder.relative_to(home).as_posix(): (d.reason, d.command) for d in found}


def restore_backup(home):
    """Bring the store back as it was when each series had its first version, and give the number 2 to other weights."""
    client = open_store().client
    for version in client.search_model_versions(f"name = '{BTC.registered}'"):
        if str(version.version) == "2":
            client.delete_model_version(version.name, version.version)
    client.set_registered_model_alias(BTC.registered, ALIAS, "1")


def test_a_store_that_is_older_than_the_home_is_noticed_and_said(home, caplog):
    serving(home, "spot")
    assert differences(home) == {}
    succeed(open_store(), add_version(home.parent, BTC, 2))
    (reason, command) = differences(home)["hub/BTCUSDT/1h"]
    assert reason == "cpb-BTCUSDT-1h/1 is packaged, and the registry's champion is cpb-BTCUSDT-1h/2"
    assert command == "cpb publish --dry-run"
    serving(home, "spot")
    assert differences(home) == {}
    assert "is not in the MLflow store" not in caplog.text

    restore_backup(home)
    (reason, command) = differences(home)["hub/BTCUSDT/1h"]
    assert reason.startswith(
        "cpb-BTCUSDT-1h/2 is packaged, and the registry's champion is cpb-BTCUSDT-1h/1; the MLflow"
    )
    assert versions(serving(home, "spot")[0])[BTC] == ("cpb-BTCUSDT-1h/1", "verdict 1")
    assert "the packaged model cpb-BTCUSDT-1h/2 (weights " in caplog.text
    assert differences(home) == {}


def test_a_home_that_is_older_than_its_store_follows_it(home, tmp_path):
    serving(home, "spot")
    shutil.copytree(home, tmp_path / "backup")
    succeed(open_store(), add_version(home.parent, BTC, 2))
    serving(home, "spot")
    shutil.rmtree(home)
    (tmp_path / "backup").rename(home)
    assert list(differences(home)) == ["hub/BTCUSDT/1h"]
    assert versions(serving(home, "spot")[0])[BTC] == ("cpb-BTCUSDT-1h/2", "verdict 2")
    assert differences(home) == {}


def test_other_weights_under_the_same_version_are_noticed(home, foreign):
    take_store()
    reason, _ = differences(home)["hub/BTCUSDT/1h"]
    assert reason.startswith(
        f"cpb-BTCUSDT-1h/1 is packaged with the weights {foreign[0][:12]}…, and registered with "
    )
    assert "may be an older backup, or have begun anew" in reason
    assert package(home, "spot")[1] == []
    assert differences(home) == {}


def test_a_champion_that_is_not_packaged_and_one_that_is_retired_are_differences(home):
    serving(home, "spot")
    client = open_store().client
    client.delete_registered_model_alias(BTC.registered, ALIAS)
    assert differences(home) == {
        "hub/BTCUSDT/1h": (
            "cpb-BTCUSDT-1h/1 is packaged, and the registry's champion is none",
            "cpb publish --dry-run",
        )
    }
    serving(home, "spot")
    assert differences(home) == {}
    client.set_registered_model_alias(BTC.registered, ALIAS, "1")
    assert differences(home) == {
        "hub/BTCUSDT/1h": ("the champion cpb-BTCUSDT-1h/1 is not packaged", "cpb publish --dry-run")
    }
    for series in (BTC, ETH):
        client.delete_registered_model_alias(series.registered, ALIAS)
    assert differences(home)["hub/ETHUSDT/1h"][1] == "cpb train-all --coins ETHUSDT --timeframes 1h"
    shutil.rmtree(home / "hub")
    assert differences(home) == {}


def test_verify_names_each_difference_with_its_command(home):
    serving(home, "spot")
    succeed(open_store(), add_version(home.parent, BTC, 2))
    promoted = verify_all(home, ("spot",))
    assert promoted.damaged == []  # as after each promotion, until the next forecast
    (sentence,) = promoted.behind
    assert (
        "the registry's champion is cpb-BTCUSDT-1h/2; the next forecast or `cpb publish --dry-run`"
        in sentence
    )

    serving(home, "spot")
    restore_backup(home)
    (found,) = verify_all(home, ("spot",)).damaged
    assert (found.path, found.command) == ("hub/BTCUSDT/1h", "cpb publish --dry-run")
    assert "the MLflow store does not hold the packaged one" in found.reason


@pytest.mark.parametrize("name", ["MLmodel", "conda.yaml", "python_env.yaml"])
def test_the_remedy_for_a_champions_file_that_no_forecast_reads_works(home, tmp_path, name):
    """A training replaces the champion, which would be damaged for ever as `previous`."""
    store = open_store()
    (champion,) = champions(store, [BTC])
    (champion.folder / name).write_bytes(b"damaged")
    (found,) = verify_champions(home, "spot")
    assert (found.path, found.command) == (str(champion.folder / name), training_command(champion))

    succeed(store, add_version(tmp_path, BTC, 2))  # as the training of that command does
    assert aliases_of(store, BTC) == {ALIAS: "2"}
    assert list(verify_champions(home, "spot")) == []
    succeed(store, add_version(tmp_path, BTC, 3))
    assert aliases_of(store, BTC) == {ALIAS: "3", PREVIOUS: "2"}
