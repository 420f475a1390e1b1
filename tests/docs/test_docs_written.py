"""What can be checked of the documents by reading them: links, anchors, names of folders and options, info strings."""

import ast
import re
import tomllib
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote

import pytest
import typer

import cpbmodels
from cpbmodels.arch.options import ALIASES
from schemas.presets import PRESET_ARCHITECTURES
from tests.tools.doc_blocks import EXECUTED, PAGES, ROOT, SHELL, SHOWN, blocks, cpb_commands, prose

WRITTEN = [*PAGES, ROOT / "benchmarks/RESULTS.md", ROOT / "CHANGELOG.md", ROOT / "llms.txt"]
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


BY_NAME = re.compile(
    r"(?<![\w./-])cpb(\[|==|>=|~=| @ )|(pip|pipx|uv|uv pip|uv tool) (install|add|run)( +-\S+)* +['\"]?cpb(?![\w./-])"
)
"""A requirement by the name `cpb`, which on the public index is another project's package."""


def test_nothing_tells_a_user_to_install_another_projects_package():
    folders = ("flows", "tasks", "schemas", "cpbmodels", "webapp", "benchmarks", "docs", ".ci")
    kinds = {".py", ".md", ".ipynb", ".yaml", ".yml", ".toml", ".txt", ".sh", ".js", ".html", ".json", ""}
    files = [*ROOT.glob("*"), *(path for folder in folders for path in (ROOT / folder).rglob("*"))]
    texts = {
        path: path.read_text(errors="replace") for path in files if path.is_file() and path.suffix in kinds
    }
    assert len(texts) > 200
    assert not [(str(path), match[0]) for path, text in texts.items() for match in BY_NAME.finditer(text)]
    assert BY_NAME.search("pip install 'cpb[ray]'")
    assert BY_NAME.search("pip install -q cpb")
    assert not BY_NAME.search(
        "pip install ./cpbmodels && pip install -e '.[ray]' && pip install cpb-forecast"
    )


def test_the_distribution_has_a_name_of_its_own():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (project["name"], project["scripts"]) == ("cpb-forecast", {"cpb": "flows.cli:main"})


NUMBER = r"(?<![\d,.])\d[\d,]*\d(?:\.\d+)?|\d+\.\d+"


def test_measured_times_and_sizes_are_those_of_the_measurements():
    """Seconds of the README, and the table of one H100."""
    results = {*re.findall(NUMBER, (ROOT / "benchmarks/RESULTS.md").read_text())}
    readme, gpu = ((ROOT / name).read_text() for name in ("README.md", "docs/gpu.md"))
    measured = gpu.partition("## One H100")[2].partition("\n## ")[0]
    told = {*re.findall(rf"({NUMBER}) s\b", readme)}
    told |= {*re.findall(NUMBER, "".join(re.findall(r"^\|.*\n", measured, re.MULTILINE)))}
    assert len(told) > 30
    assert told <= results


def test_the_readme_has_its_commands_on_its_first_screens_and_the_house_has_every_room():
    screens = "\n".join((ROOT / "README.md").read_text().splitlines()[:50])
    for command in ("make install", "make demo", "make test", r"\.venv/bin/cpb train-all"):
        assert re.search(rf"(^|`){command}\b", screens, re.MULTILINE)
    assert all(name in screens for name in ("Prefect", "MLflow", "--target", "--stop"))
    house = (ROOT / "docs/architecture.md").read_text().partition("## The house")[2].partition("\n## ")[0]
    tracked = {path.parent for path in ROOT.glob("tasks/*/__init__.py")} | {
        ROOT / name for name in ("flows", "schemas", "webapp", "cpbmodels", "benchmarks", "docs")
    }
    missing = [path for path in tracked if f"`{path.relative_to(ROOT).as_posix()}/`" not in house]
    assert not missing


CORE = (
    "tasks",
    "flows",
    "tasks/market",
    "tasks/signals",
    "tasks/training",
    "tasks/judging",
    "cpbmodels/fleet",
)


def test_the_map_of_the_core_has_a_line_for_each_file_in_the_order_of_the_data():
    rows = re.findall(r"^\| `([^`]+\.py)` \|", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    core = [path for folder in CORE for path in (ROOT / folder).glob("*.py") if path.name != "__init__.py"]
    assert sorted(rows) == sorted(path.relative_to(ROOT).as_posix() for path in core)
    assert rows[0] == "tasks/steps.py"
    assert [*dict.fromkeys(row.rpartition("/")[0] for row in rows)] == [*CORE]


def test_every_block_says_what_it_is():
    assert not [b.place for b in blocks() if b.kind not in (*EXECUTED, *SHELL, *SHOWN)]


def test_every_command_and_option_that_the_documents_name_exists():
    from flows.cli.app import _app

    cpb = typer.main.get_command(_app())
    wrong = [(place, problem) for place, words in cpb_commands() if (problem := _problem(cpb, words[1:]))]
    assert not wrong


OF_OTHERS = {
    "--artifacts-destination": "mlflow server",
    "--env-manager": "mlflow models",
    "--gpus": "docker run",
    "--index-url": "pip install",
    "--torch-backend": "uv tool install",
}
"""Options of other programs that the pages name alone."""


def test_every_option_that_stands_alone_in_a_page_is_one_of_cpb():
    """As in `--batch-size 16`; decisions.md also names what was given up."""
    from flows.cli.app import _app

    def options(command):
        for param in command.params:
            yield from (*param.opts, *param.secondary_opts)
        for below in getattr(command, "commands", {}).values():
            yield from options(below)

    known = {*options(typer.main.get_command(_app())), *OF_OTHERS, "--help"}
    pages = [path for path in PAGES if path.name != "decisions.md"]
    named = {
        (path.name, name) for path in pages for name in re.findall(r"`(--[a-z][a-z-]*)", path.read_text())
    }
    assert len(named) > 100
    assert not {use for use in named if use[1] not in known}
    assert {*OF_OTHERS} <= {name for _, name in named}


def _problem(command, words):
    """What the parser of the command that is named says; "" where it takes the words, or values are left out."""
    # In a sentence of an error: `cpb train-all…`, and `--port PORT`, which stands for a value of one's own.
    words = [word.rstrip("…") for word in words if word != "…"]
    words = [word for before, word in pairwise(["", *words]) if f"--{word.lower()}" != before]
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        if words[0] not in command.commands:
            return "" if words[0].isupper() else words[0]
        command, words = command.commands[words[0]], words[1:]
    if hasattr(command, "commands"):
        return ""
    try:
        command.make_context("cpb", list(words))
    except typer.Exit:
        return ""  # --help
    except typer.BadParameter.__bases__[0] as error:  # click's UsageError, of click or of typer's copy
        left_out = type(error).__name__ in ("MissingParameter", "BadOptionUsage")
        return "" if left_out else error.message
    return ""


GONE = (
    (ROOT / "CHANGELOG.md").read_text().partition("\nGone (")[2].partition("\n\n- ")[2].partition("\n## ")[0]
)


def test_nothing_that_the_changelog_calls_gone_is_there():
    """Commands as in `cpb export`, options as in `publish --site`; not what something "of" or "in" them was."""
    from flows.cli.app import _app

    cpb = typer.main.get_command(_app())
    listed = re.sub(r"\(now .*?\)", "", " ".join(GONE.split()))
    named = [span.split() for span in re.findall(r"(?<! of )(?<! in )`([^`]+)`", listed)]
    words = [span for span in named if span[0] == "cpb" or any(word.startswith("--") for word in span)]
    assert len(words) >= 12
    assert not [" ".join(span) for span in words if _stands(cpb, span[span[0] == "cpb" :])]


def _stands(cpb, words: list[str]) -> bool:
    """Whether a command and one of the options behind it exist; without a command: an option of any command."""
    names, options = [w for w in words if not w.startswith("--")], {w for w in words if w.startswith("--")}
    command = cpb
    for name in names:
        command = getattr(command, "commands", {}).get(name)
        if command is None:
            return False
    commands = [command] if names else [*cpb.commands.values()]
    known = {
        n
        for c in commands
        for param in getattr(c, "params", ())
        for n in (*param.opts, *param.secondary_opts)
    }
    return bool(options & known) if options else True


def test_every_preset_that_the_documents_set_exists():
    names = {*PRESET_ARCHITECTURES}
    given = [
        (place, words[words.index("--preset") + 1])
        for place, words in cpb_commands()
        if "--preset" in words[:-1]
    ]
    assert given
    listed = [(place, name) for place, preset in given for name in preset.split(",")]
    assert not [use for use in listed if use[1] not in names and not re.search(r"[A-Z]|\.toml", use[1])]


def test_every_option_set_on_the_command_line_is_a_field_of_the_preset():
    fields = {*cpbmodels.Preset.__dataclass_fields__, *ALIASES}
    names = [
        word.partition("=")[0].replace("-", "_")
        for _, words in cpb_commands()
        for flag, word in pairwise(words)
        if flag == "--set"
    ]
    assert not [name for name in names if name not in fields and not name.isupper()]


def test_every_message_of_the_troubleshooting_table_is_one_of_the_code():
    """Parts between `…` must stand in the texts of the code, in that order within one text."""
    page = (ROOT / "docs/troubleshooting.md").read_text()
    quoted = re.findall(r"^\| `([^`]+)`", page, re.MULTILINE)
    assert len(quoted) > 10
    texts = [
        text
        for package in ("flows", "tasks", "schemas", "cpbmodels", "webapp")
        for path in (ROOT / package).rglob("*.py")
        for text in _texts(path)
    ]
    patterns = {match: re.compile(".*".join(map(re.escape, _parts(match))), re.DOTALL) for match in quoted}
    assert not [match for match, pattern in patterns.items() if not any(map(pattern.search, texts))]


def _parts(message: str) -> list[str]:
    return [part for part in re.split(r"…|\.\.\.", message) if part.strip()]


def _texts(path: Path) -> list[str]:
    """Every text of a module; what an f-string computes is left out, as are the quotes around it."""
    texts = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            texts.append(
                "".join(part.value if isinstance(part, ast.Constant) else "" for part in node.values)
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts.append(node.value)
    return texts


def test_every_column_of_a_forecast_row_is_described():
    from schemas.forecast_rows import FORECAST_SCHEMA

    table = (ROOT / "docs/reference.md").read_text().partition("## Forecast rows")[2].partition("## HTTP")[0]
    named = set()
    for row in re.findall(r"^\| (`.+?) \|", table, flags=re.M):
        names = re.findall(r"`(\w+)`", row)
        if "…" in row:
            prefix = names[0].removesuffix("05")
            names = [f"{prefix}{level:02}" for level in range(5, 100, 5)]
        named |= set(names)
    assert named == set(FORECAST_SCHEMA)
