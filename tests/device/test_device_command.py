import json

import pytest
import typer
from typer.testing import CliRunner

from cpbmodels.device import doctor, host
from flows.cli.data import doctor as command


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
    wrong = ([doctor.Problem("the driver is too old", "update it")], [])
    monkeypatch.setattr(doctor, "software_findings", lambda evidence: wrong)
    assert cpb("--quick", "--json").exit_code == 1
    result = cpb("--quick")
    assert result.exit_code == 1
    assert "remedy: update it" in result.stdout
