"""Two homes with one store (`CPB_STORE`): the second trains nothing that the first has; a wrong store is refused."""

import pytest

from flows.runner import Runner
from flows.train_all import run_train_all
from schemas.errors import UsageError
from schemas.run import RunSpec
from tasks.ingest import ingest
from tasks.tracking.registry import champions
from tasks.training import worker
from tasks.training.fleet_files import fleet_folders, read_job, read_result

OPTIONS = {
    "coins": "BTC,ETH", "timeframes": "1h", "architectures": "linear,robust-har", "preset": "smoke", "source": "sim",
    "since": "2024-09", "as_of": "2025-01-01", "overrides": {"epochs": 1},
}  # fmt: skip


@pytest.fixture
def trained(monkeypatch, tmp_path):
    """The architectures that were trained, by a trainer in this process."""
    found = []

    def train(folder, slots, timeout_s, on_progress=None, on_start=None):
        if on_start and not (folder / "result.json").exists():
            on_start()
        if not (folder / "result.json").exists():
            found.append(read_job(folder).architecture)
            worker.train_job(folder)

    monkeypatch.setattr("tasks.training.executor.run_trainer", train)
    (tmp_path / "store").mkdir()
    monkeypatch.setenv("CPB_STORE", f"file://{tmp_path}/store")
    return found


def machine(name, tmp_path, monkeypatch):
    """Work on a machine of this name: a home and an MLflow store of its own."""
    (tmp_path / name).mkdir(exist_ok=True)
    monkeypatch.chdir(tmp_path / name)
    monkeypatch.setenv("CPB_HOME", str(tmp_path / name / "data"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/{name}/mlflow.db")


def test_two_machines_share_what_they_train(trained, tmp_path, monkeypatch):
    machine("a", tmp_path, monkeypatch)
    first = run_train_all(RunSpec(**OPTIONS), Runner(), lambda line: None)
    assert sorted(set(trained)) == ["linear", "robust-har"]
    trained.clear()
    machine("b", tmp_path, monkeypatch)
    second = run_train_all(RunSpec(**OPTIONS), Runner(), lambda line: None)
    assert trained == []
    assert (second.members, second.champions, second.forecast_rows, second.exit_code) == (4, 2, 20, 0)
    assert (first.members, first.champions, first.forecast_rows, first.exit_code) == (4, 2, 20, 0)
    folders = [fleet_folders(tmp_path / name / "data/sim") for name in "ab"]
    assert [folder.name for folder in folders[0]] == [folder.name for folder in folders[1]]
    assert [read_result(folder) for folder in folders[0]] == [read_result(folder) for folder in folders[1]]
    assert len(champions(market="sim")) == 2


def test_a_store_that_cannot_be_used_is_refused_before_anything_is_fetched(trained, tmp_path, monkeypatch):
    machine("a", tmp_path, monkeypatch)
    monkeypatch.setattr(ingest, "fn", lambda *_: pytest.fail("fetched"))
    for url in ("nonsense", "file:///nowhere/at/all", "s3://key:word@bucket"):
        monkeypatch.setenv("CPB_STORE", url)
        with pytest.raises(UsageError) as caught:
            run_train_all(RunSpec(**OPTIONS), Runner(), lambda line: None)
        assert caught.value.field == "CPB_STORE"
    assert not (tmp_path / "a/data/sim/klines").exists()
