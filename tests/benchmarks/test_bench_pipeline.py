from mlflow.entities import Param

from benchmarks import pipeline
from tasks.tracking.store import open_store


def test_a_command_is_timed_with_its_memory(tmp_path):
    answer = pipeline.measure(["--version"], tmp_path)
    assert answer["exit"] == 0
    assert answer["peak_pss_mb"] > 0
    assert answer["cpu_seconds"] > 0


def test_a_stores_growth_is_what_runs_have_added_to_its_schema(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("CPB_HOME", str(tmp_path / "data"))
    store = open_store()
    before = pipeline.growth(tmp_path)
    assert (before["artifact_files"], before["artifact_bytes"]) == (0, 0)
    run = store.client.create_run(store.experiment_id)
    store.client.log_batch(run.info.run_id, params=[Param(f"p{n}", "x" * 1000) for n in range(50)])
    store.client.log_text(run.info.run_id, "twelve bytes", "a.txt")
    after = pipeline.growth(tmp_path)
    assert after["database_rows"] - before["database_rows"] == 50 + 1 + 1  # params, the run, its tag runName
    assert after["database_bytes"] - before["database_bytes"] > 50_000
    assert (after["artifact_files"], after["artifact_bytes"]) == (1, 12)
