"""How a command ends: its answer in lines for people or as one JSON object, and its exit code."""

import json

import pytest
import typer
from typer.testing import CliRunner

from flows.cli.ending import Answer, answered
from flows.console import show


@pytest.fixture
def ended():
    """Run a command that answers with an exit code of 3."""

    @answered
    def command(name: str = "x") -> Answer:
        return Answer({"name": name, "exit": 3}, lambda: show(f"it is {name}"), ["one was left out"])

    app = typer.Typer()
    app.command()(command)
    return lambda *words: CliRunner().invoke(app, list(words))


def test_people_get_lines_on_stdout_and_notes_on_stderr(ended):
    done = ended("--name", "y")
    assert (done.exit_code, done.stdout, done.stderr) == (3, "it is y\n", "one was left out\n")


def test_programs_get_one_object_on_stdout_and_the_same_notes(ended):
    done = ended("--json")
    assert (done.exit_code, json.loads(done.stdout)) == (3, {"name": "x", "exit": 3})
    assert done.stderr == "one was left out\n"


def test_an_answer_without_an_exit_code_is_complete():
    app = typer.Typer()
    app.command()(answered(lambda: Answer({})))
    assert CliRunner().invoke(app, []).exit_code == 0
