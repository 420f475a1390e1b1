"""What can be checked of the documents by reading them: links, anchors, names of folders and options, info strings."""

import ast
import re
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote

import pytest
import typer
from snippets import PAGES, ROOT, RUN, SHOWN, blocks, cpb_commands, prose

import cpbmodels
from cpbmodels.options import ALIASES
from schemas.presets import PRESET_ARCHITECTURES

WRITTEN = [*PAGES, ROOT / "benchmarks/RESULTS.md", ROOT / "CHANGELOG.md"]
FOREIGN = re.compile(r"\.\./(shared|facts)|shared/facts")
IDS = [path.relative_to(ROOT).as_posix() for path in WRITTEN]


def slug(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "")
    return re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")


def anchors(path: Path) -> set[str]:
    return {slug(line.lstrip("#")) for line in prose(path).splitlines() if re.match(r"#{1,6} ", line)}


@pytest.mark.parametrize("path", WRITTEN, ids=IDS)
def test_every_relative_link_leads_to_a_file_and_a_heading(path):
    wrong = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(path)):
        if "://" in target or target.startswith("mailto:"):
            continue
        name, _, anchor = unquote(target).partition("#")
        file = (path.parent / name).resolve() if name else path
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
            wrong.append(target)
    assert not wrong


@pytest.mark.parametrize("path", WRITTEN, ids=IDS)
def test_no_page_names_a_folder_that_its_reader_does_not_have(path):
    assert not FOREIGN.findall(path.read_text())


def test_no_docstring_names_a_folder_that_its_reader_does_not_have():
    packages = ("schemas", "tasks", "flows", "webapp", "cpbmodels")
    code = [path for package in packages for path in (ROOT / package).rglob("*.py")]
    assert not [str(path) for path in code if FOREIGN.search(path.read_text())]


def test_every_block_says_whether_it_is_run_or_shown():
    assert not [b.place for b in blocks() if b.kind not in (*RUN, *SHOWN)]


def test_every_command_and_option_that_the_documents_name_exists():
    from flows.cli import _app

    cpb = typer.main.get_command(_app())
    wrong = [(place, problem) for place, words in cpb_commands() if (problem := _unknown(cpb, words[1:]))]
    assert not wrong


def _unknown(command, words):
    """The first word that is no command or option; "" where all are known."""
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        if words[0] not in command.commands:
            return "" if words[0].isupper() or words[0] == "…" else words[0]
        command, words = command.commands[words[0]], words[1:]
    known = {name for one in command.params for name in (*one.opts, *one.secondary_opts)} | {"-h", "--help"}
    known |= {"--version"} if hasattr(command, "commands") else set()
    given = [word.partition("=")[0].rstrip(",.;:)") for word in words if re.match(r"--?[a-z]", word)]
    return next((name for name in given if name not in known), "")


def test_every_preset_that_the_documents_set_exists():
    known = {*PRESET_ARCHITECTURES}
    given = [
        (place, words[words.index("--preset") + 1])
        for place, words in cpb_commands()
        if "--preset" in words[:-1]
    ]
    assert given
    assert not [one for one in given if one[1] not in known and not re.search(r"[A-Z]|\.toml", one[1])]


def test_every_option_set_on_the_command_line_is_a_field_of_the_preset():
    known = {*cpbmodels.Preset.__dataclass_fields__, *ALIASES}
    names = [word.partition("=")[0].replace("-", "_") for _, words in cpb_commands()
             for flag, word in pairwise(words) if flag == "--set"]  # fmt: skip
    assert not [name for name in names if name not in known and not name.isupper()]


def test_every_message_of_the_troubleshooting_table_is_one_of_the_code():
    """Parts between `…` must stand in the texts of the code, in that order within one text."""
    page = (ROOT / "docs/troubleshooting.md").read_text()
    quoted = re.findall(r"^\| `([^`]+)`", page, re.MULTILINE)
    assert len(quoted) > 30
    texts = [text for package in ("flows", "tasks", "schemas", "cpbmodels", "webapp")
             for path in (ROOT / package).rglob("*.py") for text in _texts(path)]  # fmt: skip
    patterns = {one: re.compile(".*".join(map(re.escape, _parts(one))), re.DOTALL) for one in quoted}
    assert not [one for one, pattern in patterns.items() if not any(map(pattern.search, texts))]


def _parts(message: str) -> list[str]:
    return [part for part in re.split(r"…|\.\.\.", message) if part.strip()]


def _texts(path: Path) -> list[str]:
    """Every text of a module; what an f-string computes is left out, as are the quotes around it."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            found.append(
                "".join(part.value if isinstance(part, ast.Constant) else "" for part in node.values)
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
    return found
