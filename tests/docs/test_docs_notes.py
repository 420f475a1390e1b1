"""The page for whoever wrote the first notes, `docs/notes.md`: complete, its commands accepted, found at once."""

import re
from collections import Counter
from pathlib import Path

import pytest
import typer

from tests.tools.doc_blocks import ROOT, cpb_commands

PAGE = "docs/notes.md"
TEXT = (ROOT / PAGE).read_text()
AUDIT = {*map(str, range(1, 147)), "66b", "79b", "122b", "131b"}
"""Numbers of the promises in the audit of the five notes and the design card."""
ROW = re.compile(r"^\| (\d+b?) \| (.+?) \| (\w*) \| (.+) \|$", re.MULTILINE)
ONE = ["cpb", "train", "BTC", "1h", "--arch", "gru"]
TYPED = [words for place, words in cpb_commands() if place.partition(":")[0] == PAGE]
OPTIONS = [
    [*ONE, *option.split()]
    for *_, answer in ROW.findall(TEXT)
    for option in re.findall(r"`(--[a-z][^`]*)`", answer)
]
"""Options that rows name alone, on a command for one model."""
COMMANDS = {" ".join(words): words for words in (*TYPED, *OPTIONS)}


def test_every_promise_of_the_audit_stands_once_and_is_kept_or_replaced():
    rows = ROW.findall(TEXT.partition("## Every promise")[2])

    assert Counter(number for number, *_ in rows) == Counter(AUDIT)
    assert {state for _, _, state, _ in rows} == {"served", "differently"}
    assert not [number for number, _, _, answer in rows if re.search(r"not tried|to do|TODO|missing", answer)]


def test_each_replaced_promise_has_a_reason_and_no_row_is_malformed():
    promises = TEXT.partition("## Every promise")[2].partition("## Where the seed presets")[0]
    lines = [line for line in promises.splitlines() if re.match(r"\| (?!#|---)", line)]

    assert not [line for line in lines if not ROW.fullmatch(line)]
    assert not [
        line for line in lines if "| differently |" in line and len(ROW.fullmatch(line)[4].split()) < 8
    ]


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_every_command_is_accepted_with_all_its_options(words, monkeypatch, tmp_path):
    """Up to the specification that a command builds: nothing is fetched, trained or served."""
    from flows.cli import train
    from flows.cli.app import _app

    monkeypatch.chdir(tmp_path)
    times = "\n".join(f"2024-01-0{day},1,1,1,1,1" for day in range(1, 10))
    Path("BTC-USD.csv").write_text(f"Date,Open,High,Low,Close,Volume\n{times}\n")

    built = []

    def accepted(spec, *_args, **_options):
        built.append(spec)
        raise typer.Exit

    monkeypatch.setattr(train, "_train_all", accepted)
    monkeypatch.setattr("flows.train_one.train_one", accepted)
    command, rest = typer.main.get_command(_app()), words[1:]
    while hasattr(command, "commands"):
        command, rest = command.commands[rest[0]], rest[1:]
    if rest == ["--help"]:
        return
    context = command.make_context("cpb", list(rest))
    if command.name in ("train", "train-all"):
        with pytest.raises(typer.Exit), context:
            command.invoke(context)
        assert built


def test_the_names_of_the_notes_lead_to_their_presets():
    table = TEXT.partition("## What you typed")[2].partition("## Every promise")[0]
    for script, preset in (("transformer", "transformer"), ("fast_gru", "gru"), ("unified", "lstm")):
        assert f"| `v4_train_{script}.py` | `cpb train-all --preset seed-{preset}` |" in table
    for name in (
        "train_gpu.bat",
        "train_gpu.py",
        "v4_results/",
        "checkpoint-latest.pt",
        "gpu_diagnostic_tool.py",
    ):
        assert name in table


def test_the_page_says_how_cpb_gets_here_before_its_first_command():
    assert all(word in TEXT.partition("```sh")[0] for word in ("`make install`", "`. .venv/bin/activate`"))


@pytest.mark.parametrize("start", ["README.md", "docs/index.md"])
def test_the_page_is_found_on_the_first_screen(start):
    screen = "\n".join((ROOT / start).read_text().splitlines()[:20])
    assert "notes.md)" in screen
    assert "v4_train_transformer.py" in screen


def test_the_chinese_page_has_the_notes_names_with_the_same_commands():
    page = (ROOT / "docs/zh.md").read_text()
    assert "(#从最初的笔记来)" in "\n".join(page.splitlines()[:10])
    table = page.partition("## 从最初的笔记来\n")[2].partition("\n## ")[0]
    commands = re.findall(r"`(cpb [^`]+)`", table)
    assert len(commands) > 8
    assert not [command for command in commands if command not in TEXT]
    assert "(notes.md)" in table


def test_the_site_has_the_page_in_its_menu():
    nav = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2]
    assert ": notes.md\n" in nav


def test_no_page_claims_what_only_this_page_shows_row_by_row():
    pages = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")]
    assert not [page.name for page in pages if "promise of theirs is kept" in page.read_text()]
