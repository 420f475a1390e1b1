"""What agents and scripts read, SKILL.md and llms.txt: its form, exit codes and the keys of what commands print.

That its commands, options and links exist: `test_docs_written.py`.
"""

import json
import re
import shlex
import subprocess

import pytest
import yaml

from schemas import errors
from tests.tools.doc_blocks import ROOT

SKILL, LLMS = (ROOT / "SKILL.md").read_text(), (ROOT / "llms.txt").read_text()
PRICED = ("touch", "first", "above", "stops")


def table(heading):
    """The rows of the table whose first column has this name, each as its cells."""
    _, found, rest = SKILL.partition(f"\n| {heading} | ")
    assert found
    rows = rest.partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows]


def keys(cell):
    """The keys in code of a cell; of several codes, those of the last."""
    return re.findall(r"`([^`]+)`", cell)[-1].split()


def test_the_skill_has_the_front_matter_that_agents_read():
    start, head, body = SKILL.split("---\n", 2)
    about = yaml.safe_load(head)
    assert (start, about.keys()) == ("", {"name", "description"})
    assert re.fullmatch(r"[a-z0-9-]{1,64}", about["name"])
    assert 50 < len(about["description"]) <= 1024
    assert body.startswith("\n# cpb\n")
    assert len(SKILL.splitlines()) < 500


def test_the_exit_codes_are_those_of_the_code():
    known = {value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    assert {int(code): meaning for code, meaning, _ in table("exit code")}.keys() == known
    codes = {int(code): meaning for code, meaning, _ in table("exit code")}
    assert codes[errors.EXIT_COMPLETE] == "complete"
    assert codes[errors.EXIT_USAGE] == "a wrong option"
    assert codes[errors.EXIT_PARTIAL].startswith("partial")
    assert codes[errors.EXIT_INTERRUPTED] == "interrupted"
    assert all(f"{code} (" in LLMS or f"or {code} (" in LLMS for code in known)


def test_llms_txt_has_the_form_that_readers_expect():
    """https://llmstxt.org: a title, a summary, then sections of links, the last of them optional."""
    title, blank, summary, *_ = LLMS.splitlines()
    assert (title, blank) == ("# cpb", "")
    assert summary.startswith("> ")
    sections = re.split(r"^## (.+)\n", LLMS, flags=re.MULTILINE)[1:]
    assert sections[::2][-1] == "Optional"
    for links in sections[1::2]:
        lines = links.strip().splitlines()
        assert lines
        assert all(re.fullmatch(r"- \[[^\]]+\]\([^)]+\): .+", line) for line in lines)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("agent")


@pytest.fixture(scope="module")
def cpb(home, forking):
    """Types a command with --json where `cpb demo` has run; returns its exit code and its object."""

    def typed(command):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("CPB_HOME", str(home / "data"))
            patch.delenv("MLFLOW_TRACKING_URI", raising=False)
            words = [forking / "cpb", *shlex.split(command)[1:], "--json"]
            done = subprocess.run(words, cwd=home, capture_output=True, text=True, check=False, timeout=600)
        return done.returncode, json.loads(done.stdout.splitlines()[-1])

    code, told = typed("cpb demo")
    assert code == 0
    assert set(told) == set(keys(of("`cpb demo`, `cpb train-all`")[1]))
    return typed


def of(command):
    """The row of a command in the table of keys."""
    return next(row for row in table("command") if row[0] == command)


OPTIONS = {
    "cpb forecast": "BTC 1h --source sim",
    "cpb champions": "--market sim",
    "cpb leaderboard": "--market sim",
    "cpb ledger": "--market sim",
    "cpb ingest": "--source sim --coins BTC --timeframes 1h --since 2025-01",
    "cpb publish": "--dry-run --market sim",
    "cpb doctor": "--quick",
}
"""What each command of the table takes after `cpb demo`."""


@pytest.mark.slow
@pytest.mark.parametrize("row", table("command")[1:], ids=lambda row: row[0])
def test_the_keys_are_those_that_the_command_prints(cpb, row):
    command, top, below = row[0].strip("`"), keys(row[1]), row[2] if len(row) > 2 else ""
    code, told = cpb(f"{command} {OPTIONS.get(command, '')}")
    assert code == told["exit"] == 0
    # a doctor tells more, of the device alone
    assert set(told) == set(top) if command != "cpb doctor" else set(told) >= set(top)
    if below:
        name = re.match(r"`(\w+)`:", below)[1]
        assert set(told[name][0]) >= set(keys(below))


@pytest.mark.slow
def test_the_answers_about_prices_have_these_keys(cpb):
    _, told = cpb("cpb forecast BTC 1h --source sim --offline")
    close = told["rows"][0]["last_close"]
    asked = f"--touch {close * 1.01:.2f} --target {close * 1.02:.2f} --stop {close * 0.99:.2f}"
    code, told = cpb(
        f"cpb forecast BTC 1h --source sim --offline {asked} --above {close:.2f} --stop-chance 5%"
    )
    assert code == 0
    rows = table("option")
    assert sorted(keys(name)[0] for _, name, _ in rows) == sorted(PRICED)
    for _, name, entry in rows:
        assert set(told[keys(name)[0]][0]) == set(keys(entry))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("cpb forecast BTC 1h --source sim --touch 98,500", 2),
        ("cpb forecast BTC 1h --source sim --stop-chance 5", 2),
        ("cpb forecast DOGE 1h --source sim", 1),
    ],
)
def test_an_error_is_an_object_with_these_keys(cpb, command, code):
    """Of the pitfalls those that end in an error."""
    stated = re.search(r"An error is `(\{.+?\})`", SKILL)[1]
    exit_code, told = cpb(command)
    assert exit_code == told["exit"] == code
    assert list(told) == re.findall(r'"(\w+)"', stated)
