"""GitHub's workflow and pre-commit's hooks: what a reader of YAML finds in them is here."""

import re
import tomllib
from pathlib import Path

import pytest
import typer
import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
WORKFLOW = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
JOBS = WORKFLOW["jobs"]
COMMANDS = [step["run"] for job in JOBS.values() for step in job["steps"] if "run" in step]
TARGETS = {*re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE)}


def test_every_change_is_checked_and_the_exchange_blocks_none():
    assert {"push", "pull_request", "schedule"} <= WORKFLOW[True].keys()  # YAML 1.1 reads `on` as true
    tolerant = {name for name, job in JOBS.items() if job.get("continue-on-error")}
    nightly = {name for name, job in JOBS.items() if "event_name == 'schedule'" in job["if"]}
    assert tolerant == nightly
    assert len(nightly) == 1


def test_what_the_jobs_make_is_in_the_makefile():
    made = {
        target
        for run in COMMANDS
        if run.startswith("make ")
        for target in run.split()[1:]
        if "=" not in target
    }
    assert {"lint", "test-fast", "test-slow"} <= made <= TARGETS


def test_every_job_has_the_build_of_torch_for_cpus_before_it_makes_anything():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (torch,) = [one for one in map(Requirement, project["dependencies"]) if one.name == "torch"]
    asked = Requirement(WORKFLOW["env"]["CPU_TORCH"].split()[-1])
    (pinned,) = asked.specifier
    assert torch.specifier.contains(pinned.version)
    for job in JOBS.values():
        runs = [step["run"] for step in job["steps"] if "run" in step]
        assert runs[0].endswith(".venv/bin/pip install $CPU_TORCH")


def test_the_fast_tests_run_on_the_oldest_python_and_a_new_one():
    oldest = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"].removeprefix(
        ">="
    )
    pythons = JOBS["fast"]["strategy"]["matrix"]["python"]
    assert pythons[0] == oldest
    assert len(pythons) > 1


@pytest.mark.parametrize("run", [run for run in COMMANDS if "/cpb " in run])
def test_a_job_types_no_command_that_cpb_does_not_take(run):
    from flows.cli.app import _app

    command, *options = run.split()[1:]
    typer.main.get_command(_app()).commands[command].make_context("cpb", options)


def test_before_a_commit_ruff_alone_runs():
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert all(hook["entry"].split()[0].endswith("/ruff") for hook in local["hooks"])
