import json

import pytest
import typer
from typer.testing import CliRunner

from cpbmodels.device import doctor, findings, host
from flows.cli.doctor import doctor as command


@pytest.fixture
def cpb():
    app = typer.Typer()
    app.command("doctor")(command)
    return lambda *words: CliRunner().invoke(app, list(words))


def test_json_is_one_object_and_nothing_else(cpb, monkeypatch):
    monkeypatch.setattr(host, "gpu_evidence", lambda: host.GpuEvidence((), None))
    result = cpb("--quick", "--json")
    facts = json.loads(result.stdout)
    assert result.exit_code == (0 if facts["ok"] else 1)
    assert {"torch", "cpu", "gpus", "rates", "profile", "problems", "notes"} <= set(facts)


def test_a_problem_is_exit_code_1_for_people_and_machines(cpb, monkeypatch):
    wrong = ([findings.Problem("the driver is too old", "update it")], [])
    monkeypatch.setattr(doctor, "software_findings", lambda evidence: wrong)
    assert cpb("--quick", "--json").exit_code == 1
    result = cpb("--quick")
    assert result.exit_code == 1
    assert "remedy: update it" in result.stdout


def test_a_store_that_machines_share_is_looked_at(cpb, monkeypatch, tmp_path):
    (tmp_path / "store").mkdir()
    monkeypatch.setenv("CPB_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CPB_STORE", f"file://{tmp_path}/store")
    assert json.loads(cpb("--quick", "--json").stdout)["store"] == {
        "url": f"file://{tmp_path}/store",
        "writable": True,
    }
    monkeypatch.setenv("CPB_STORE", "s3://key:hidden@bucket")
    result = cpb("--quick")
    assert result.exit_code == 1
    assert "store: s3://bucket (cannot be used)" in result.stdout
    assert "PROBLEM: CPB_STORE s3://… must hold no user, password or parameter" in result.stdout
    assert "hidden" not in result.stdout
    monkeypatch.delenv("CPB_STORE")
    assert json.loads(cpb("--quick", "--json").stdout)["store"] is None
