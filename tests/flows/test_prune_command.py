"""`cpb prune`, and the pruning at the end of a nightly run."""

import json

import pytest

from flows import cli
from flows.housekeeping import prune_old
from flows.run import Run
from schemas.errors import BusyError, CpbError
from schemas.run import RunSpec
from tasks.tracking.prune import PruneReport


def test_the_command_deletes_with_yes_alone_and_says_what_stays(monkeypatch, tmp_path, cpb_here):
    monkeypatch.setenv("CPB_HOME", str(tmp_path))
    asked = []

    def prune(home, *, dry_run):
        asked.append((home, dry_run))
        return PruneReport(
            dry_run, runs=48, versions=["cpb-BTCUSDT-1h/1"], kept=["run x: it holds notes.txt"]
        )

    monkeypatch.setattr("tasks.tracking.prune.delete_old", prune)
    said, done, told = (cpb_here("prune", *words) for words in ([], ["--yes"], ["--json"]))
    assert (said[0], done[0], told[0]) == (0, 0, 0)
    assert asked == [(tmp_path, True), (tmp_path, False), (tmp_path, True)]
    assert "would delete 48 runs and 1 version; add --yes to do it" in said[2]
    assert "deleted 48 runs and 1 version\n" in done[2]
    assert all("stays: run x: it holds notes.txt" in err for *_, err in (said, done))
    assert json.loads(told[1])["kept"] == ["run x: it holds notes.txt"]


@pytest.fixture
def nightly(monkeypatch, tmp_path):
    """Prune at the end of a run, with this result or error; give the run and what was said."""
    monkeypatch.setenv("CPB_HOME", str(tmp_path))
    finished, said = [], []
    monkeypatch.setattr("flows.run.finish", lambda *given: finished.append(given))

    def run(result):
        def prune(home, *, dry_run):
            assert (home, dry_run) == (tmp_path, False)
            if isinstance(result, Exception):
                raise result
            return result

        monkeypatch.setattr("flows.housekeeping.delete_old", prune)
        night = Run("train-all", said.append, run_id="r")
        prune_old(night, tmp_path)
        return night, said, finished

    return run


def test_a_nightly_run_says_what_it_pruned(nightly):
    night, (line,), finished = nightly(PruneReport(dry_run=False, runs=16))
    assert (night.exit_code, finished, line) == (0, [], "pruning: deleted 16 runs and 0 versions")


def test_another_run_at_work_is_no_failure(nightly):
    night, (line,), finished = nightly(BusyError("run x is being written"))
    assert (night.exit_code, finished) == (0, [])
    assert "nothing was pruned" in line


@pytest.mark.parametrize("error", [CpbError("it is locked", code="database-locked"), PermissionError("no")])
def test_a_failed_pruning_makes_the_run_partial(nightly, error):
    night, _, finished = nightly(error)
    (failure,) = night.failures
    assert (failure.step, failure.series) == ("prune", None)
    assert finished == [("r", "partial", {"reason": f"the run in prune: {error}", "warnings": None})]


def test_the_nightly_deployment_prunes_and_no_other_does():
    from pathlib import Path

    import yaml

    project = yaml.safe_load((Path(cli.__file__).parents[2] / "prefect.yaml").read_text())
    asked = {d["name"]: d.get("parameters", {}).get("prune", False) for d in project["deployments"]}
    assert asked == {"train-all": False, "nightly": True, "hourly": False}


def test_pruning_is_no_part_of_what_a_run_is():
    from tasks.tracking.flow_log import _run_key

    assert _run_key(RunSpec(preset="smoke", prune=True), [], []) == _run_key(RunSpec(preset="smoke"), [], [])
