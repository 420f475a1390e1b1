"""A store as releases before markets wrote it: every model under spot's name, the market only in the flow's params."""

import logging
import shutil
from multiprocessing import get_context

import pytest
from mlflow.tracking import MlflowClient

from schemas.identity import SeriesId
from tasks.tracking import champions, migrate, open_store, register_champion
from tasks.tracking import store as store_module
from tasks.tracking.mlflow_private import close_connections

ALIAS = "champion"


class OldStore:
    """Writes runs and versions as the release before did."""

    def __init__(self, database):
        self.uri = f"sqlite:///{database}"
        self.client = MlflowClient(tracking_uri=self.uri, registry_uri=self.uri)
        location = (database.parent / "artifacts").as_uri()
        self.experiment = self.client.create_experiment("cpb", artifact_location=location)

    def run(self, name, tags, params=None):
        run_id = self.client.create_run(self.experiment, run_name=name, tags=tags).info.run_id
        for key, value in (params or {}).items():
            self.client.log_param(run_id, key, value)
        self.client.set_terminated(run_id, "FINISHED")
        return run_id

    def champion(self, symbol, market="spot", source=None, say_source=True):
        params = {"scope.market": market, "scope.source": source or "None"}
        flow = self.run("train-all", {"cpb.kind": "flow"}, params)
        fleet = self.run("har", {"cpb.kind": "fleet", "mlflow.parentRunId": flow})
        tags = {"mlflow.parentRunId": fleet, "symbol": symbol, "timeframe": "1h", "architecture": "har"}
        run_id = self.run(f"har/{symbol}/1h", tags | ({"source": source} if source and say_source else {}))
        name = f"cpb-{symbol}-1h"
        if not self.client.search_registered_models(f"name = '{name}'"):
            self.client.create_registered_model(name, {"symbol": symbol, "timeframe": "1h"})
        source_uri = f"{self.client.get_run(run_id).info.artifact_uri}"
        version_tags = {
            "symbol": symbol,
            "timeframe": "1h",
            "reason": "best",
            "metric.test_crps_ratio": "0.98",
        }
        version = self.client.create_model_version(
            name, source_uri, run_id, tags=version_tags, await_creation_for=0
        )
        self.client.set_registered_model_alias(name, ALIAS, version.version)
        return run_id

    def aliases(self):
        return {
            m.name: str(m.aliases[ALIAS])
            for m in self.client.search_registered_models()
            if ALIAS in m.aliases
        }


@pytest.fixture
def old(schema, tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mlruns").mkdir()
    shutil.copyfile(schema, tmp_path / "mlruns/mlflow.db")
    return OldStore(tmp_path / "mlruns/mlflow.db")


@pytest.fixture
def mixed(old):
    """Runs by name: simulated BTC and (said by the flow alone) LTC, um ETH over spot's, spot SOL."""
    return {
        "sim": old.champion("BTCUSDT", source="sim"),
        "sim by its flow": old.champion("LTCUSDT", source="sim", say_source=False),
        "spot before um": old.champion("ETHUSDT"),
        "um": old.champion("ETHUSDT", market="um"),
        "spot": old.champion("SOLUSDT", source="http://mirror"),
    }


MOVED = {
    "cpb-sim-BTCUSDT-1h": "1",
    "cpb-sim-LTCUSDT-1h": "1",
    "cpb-um-ETHUSDT-1h": "1",
    "cpb-ETHUSDT-1h": "1",
    "cpb-SOLUSDT-1h": "1",
}


def test_champions_move_to_their_own_market(old, mixed, caplog):
    with caplog.at_level(logging.WARNING, "cpb"):
        open_store(create=False)

    assert old.aliases() == MOVED
    runs = {name: old.client.get_model_version_by_alias(name, ALIAS) for name in MOVED}
    assert runs["cpb-sim-BTCUSDT-1h"].run_id == mixed["sim"]
    assert runs["cpb-sim-LTCUSDT-1h"].run_id == mixed["sim by its flow"]
    assert runs["cpb-um-ETHUSDT-1h"].run_id == mixed["um"]
    assert runs["cpb-ETHUSDT-1h"].run_id == mixed["spot before um"]  # its newest version of spot
    moved = runs["cpb-um-ETHUSDT-1h"]
    assert (moved.tags["market"], moved.tags["reason"], moved.tags["metric.test_crps_ratio"]) == (
        "um",
        "best",
        "0.98",
    )
    before = old.client.get_model_version("cpb-ETHUSDT-1h", "2")
    assert (before.run_id, before.source) == (moved.run_id, moved.source)
    assert [r.levelname for r in caplog.records if r.name == "cpb"] == ["WARNING"]
    assert "\n" not in caplog.records[-1].getMessage()


def test_no_version_is_deleted(old, mixed):
    before = {(v.name, v.version) for v in old.client.search_model_versions()}

    open_store()

    assert before <= {(v.name, v.version) for v in old.client.search_model_versions()}


def test_it_is_done_once(old, mixed, caplog):
    store = open_store()
    old.champion("ADAUSDT", source="sim")  # as the older release would, should it still run
    caplog.clear()

    assert migrate.migrate(store) == []
    assert "cpb-ADAUSDT-1h" in old.aliases()
    assert not caplog.records


def test_a_store_without_champions_is_marked_without_a_word(old, caplog):
    with caplog.at_level(logging.WARNING, "cpb"):
        store = open_store()

    assert store.client.get_experiment(store.experiment_id).tags["cpb.layout"] == "2"
    assert not [r for r in caplog.records if r.name == "cpb"]


@pytest.mark.parametrize("step", range(1, 12))
def test_a_kill_at_any_step_is_mended_by_the_next_start(old, mixed, monkeypatch, step):
    close_connections(old.client)

    def killed():
        import os
        import signal

        count = 0
        writes = ("create_registered_model", "create_model_version", "set_registered_model_alias",
                  "delete_registered_model_alias", "set_experiment_tag")  # fmt: skip

        def counted(write):
            def call(*arguments, **options):
                nonlocal count
                count += 1
                if count == step:
                    os.kill(os.getpid(), signal.SIGKILL)
                return write(*arguments, **options)

            return call

        for name in writes:
            monkeypatch.setattr(MlflowClient, name, counted(getattr(MlflowClient, name)))
        open_store()

    victim = get_context("fork").Process(target=killed)
    victim.start()
    victim.join(60)
    assert victim.exitcode == -9

    open_store()

    assert old.aliases() == MOVED


def test_two_processes_at_once_move_each_champion_once(old, mixed):
    close_connections(old.client)
    fork = get_context("fork")
    meet = fork.Barrier(3)

    def work():
        meet.wait(60)
        open_store()

    children = [fork.Process(target=work) for _ in range(3)]
    for child in children:
        child.start()
    for child in children:
        child.join(120)

    assert [c.exitcode for c in children] == [0] * 3
    assert old.aliases() == MOVED
    assert len(old.client.search_model_versions("name = 'cpb-um-ETHUSDT-1h'")) == 1


def test_a_champion_made_since_is_not_displaced(old, mixed, monkeypatch):
    """As after a kill in the middle, when a newer run was promoted before the migration went on."""
    store = open_store()
    newer = old.champion("XRPUSDT")
    old.client.set_tag(newer, "market", "um")
    register_champion(SeriesId("um", "ETHUSDT", "1h"), newer, store=store)
    old.client.set_registered_model_alias("cpb-ETHUSDT-1h", ALIAS, "2")
    old.client.delete_experiment_tag(old.experiment, "cpb.layout")
    store_module._opened.clear()

    open_store()

    assert old.client.get_model_version_by_alias("cpb-um-ETHUSDT-1h", ALIAS).run_id == newer
    assert old.aliases()["cpb-ETHUSDT-1h"] == "1"


def test_the_registry_reads_what_was_moved(old, mixed):
    found = {str(c.series): c for c in champions()}

    assert set(found) == {"sim BTCUSDT 1h", "sim LTCUSDT 1h", "um ETHUSDT 1h", "ETHUSDT 1h", "SOLUSDT 1h"}
    assert found["um ETHUSDT 1h"].metrics == {"test_crps_ratio": 0.98}
    assert found["um ETHUSDT 1h"].architecture == "har"
