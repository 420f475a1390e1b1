"""What can be checked of the documents by reading them: links, anchors, names of folders and options, info strings."""

import ast
import re
import tomllib
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote

import pytest
import typer
from snippets import PAGES, ROOT, RUN, SHOWN, blocks, cpb_commands, prose

import cpbmodels
from cpbmodels.arch.options import ALIASES
from schemas.presets import PRESET_ARCHITECTURES
from tasks.market.simulator import UNTIL

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


BY_NAME = re.compile(
    r"(?<![\w./-])cpb(\[|==|>=|~=| @ )|(pip|pipx|uv|uv pip|uv tool) (install|add|run)( +-\S+)* +['\"]?cpb(?![\w./-])"
)
"""A requirement by the name `cpb`, which on the public index is another project's package."""


def test_nothing_tells_a_user_to_install_another_projects_package():
    folders = ("flows", "tasks", "schemas", "cpbmodels", "webapp", "benchmarks", "docs", ".ci")
    kinds = {".py", ".md", ".ipynb", ".yaml", ".yml", ".toml", ".txt", ".sh", ".js", ".html", ".json", ""}
    files = [*ROOT.glob("*"), *(path for folder in folders for path in (ROOT / folder).rglob("*"))]
    texts = {path: path.read_text() for path in files if path.is_file() and path.suffix in kinds}
    assert len(texts) > 200
    assert not [(str(path), one[0]) for path, text in texts.items() for one in BY_NAME.finditer(text)]
    assert BY_NAME.search("pip install 'cpb[ray]'")
    assert BY_NAME.search("pip install -q cpb")
    assert not BY_NAME.search(
        "pip install ./cpbmodels && pip install -e '.[ray]' && pip install cpb-forecast"
    )


def test_the_distribution_has_a_name_of_its_own():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (project["name"], project["scripts"]) == ("cpb-forecast", {"cpb": "flows.cli:main"})


CLOCKS = {"monotonic", "perf_counter", "process_time", "thread_time", "press_ctrl_c"}
"""Calls whose differences, or whose answer, are durations."""


def test_no_fast_test_measures_time():
    """As CONTRIBUTING.md says. A wait with a generous limit, `while clock() < end`, measures nothing."""
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in (ROOT / "tests").rglob("*.py")
        for line in _measured(ast.parse(path.read_text()).body)
    ]
    assert not found
    assert _measured(ast.parse("def test():\n    a = monotonic()\n    assert monotonic() - a < 10").body) == [
        3
    ]
    assert _measured(ast.parse("def f():\n    s = x.press_ctrl_c()\n    assert s < 3").body) == [3]


def _measured(body: list[ast.stmt]) -> list[int]:
    """Lines that assert on a duration, in functions that are not marked slow."""
    lines: list[int] = []
    if any(
        "pytestmark" in (text := ast.unparse(one)) and "slow" in text
        for one in body
        if isinstance(one, ast.Assign)
    ):
        return lines
    for function in body:
        slow = "slow" in "".join(map(ast.unparse, getattr(function, "decorator_list", [])))
        if not isinstance(function, ast.FunctionDef) or slow:
            continue
        durations = {
            target.id
            for node in ast.walk(function)
            if isinstance(node, ast.Assign) and _reads_clock(node.value)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        lines += [
            node.lineno
            for node in ast.walk(function)
            if isinstance(node, ast.Assert)
            and (_is_difference(node.test) or durations & set(_compared_with_numbers(node.test)))
        ]
    return lines


def _reads_clock(node: ast.AST) -> bool:
    return any(
        isinstance(one, ast.Call) and ast.unparse(one.func).split(".")[-1] in CLOCKS for one in ast.walk(node)
    )


def _is_difference(node: ast.AST) -> bool:
    differences = [
        one for one in ast.walk(node) if isinstance(one, ast.BinOp) and isinstance(one.op, ast.Sub)
    ]
    return any(map(_reads_clock, differences))


def _compared_with_numbers(node: ast.AST) -> list[str]:
    return [
        side.id
        for one in ast.walk(node)
        if isinstance(one, ast.Compare) and any(isinstance(side, ast.Constant) for side in one.comparators)
        for side in (one.left, *one.comparators)
        if isinstance(side, ast.Name)
    ]


GPU_JOBS = {
    "transformer": ("29.5", "6,969", "1,237"),
    "gru": ("40.2", "7,706", "6,979"),
    "lstm": ("331", "66,391", "61,324"),
}
"""Seconds on one H100: the fleet, the usual loop and the competent one, as `python -m benchmarks.gpu` measured them."""


@pytest.mark.parametrize("page", ["docs/gpu.md", "benchmarks/RESULTS.md"])
def test_the_gpu_figures_are_the_same_wherever_they_stand(page):
    rows = [line for line in (ROOT / page).read_text().splitlines() if line.startswith("|")]
    for architecture, seconds in GPU_JOBS.items():
        (row,) = [row for row in rows if architecture in row and seconds[1] in row]
        assert all(re.search(rf"(?<![\d,.]){re.escape(one)}(?![\d,])", row) for one in seconds)


def test_the_readme_is_a_screen_with_its_commands_its_figures_and_the_map():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) < 60
    for command in ("make install", "make demo", "make test"):
        assert re.search(rf"(^|`){command}\b", text, re.MULTILINE)
    fleet, loop, _ = GPU_JOBS["transformer"]
    assert re.search(rf"40 transformers in {re.escape(fleet)} s; .*\({loop} s", " ".join(text.split()))
    words = re.findall(r"\b(?:fleet|member|e-value|CRPS|shard|champion)s?\b", text)
    assert not words  # none is explained here
    house = (ROOT / "docs/architecture.md").read_text().partition("## The house")[2].partition("\n## ")[0]
    tracked = {path.parent for path in ROOT.glob("tasks/*/__init__.py")} | {
        ROOT / name for name in ("flows", "schemas", "webapp", "cpbmodels", "benchmarks", "docs")
    }
    missing = [path for path in tracked if f"`{path.relative_to(ROOT).as_posix()}/`" not in house]
    assert not missing


def test_no_page_says_that_nothing_was_measured_on_a_gpu():
    wrong = re.compile(
        r"no gpu (was at hand|has run)|has \*\*not been measured|FUSED_ATTENTION|GPU rows: \*\*not",
        re.IGNORECASE,
    )
    assert not [(path.name, one[0]) for path in WRITTEN for one in wrong.finditer(path.read_text())]
    seeds = (ROOT / "docs/seeds.md").read_text()
    bare = [line for line in seeds.splitlines() if re.search(r"\| \*not measured\* \|", line)]
    assert not bare


def test_the_page_of_promises_lists_how_the_presets_differ_from_the_notes():
    page = (ROOT / "docs/seeds.md").read_text()
    listed = page.partition("## Where the presets differ")[2]
    chosen = {name: cpbmodels.preset(f"seed-{name}", name) for name in ("transformer", "gru", "lstm")}
    assert f"| {chosen['transformer'].dropout} |" in listed
    assert "pre-norm" in listed
    assert (
        "patience " + ", ".join(f"{one.patience} ({name})" for name, one in chosen.items() if name != "lstm")
        in listed
    )
    assert f"{chosen['lstm'].patience} (lstm)" in listed
    for row in (
        "DataLoader workers and pinned memory",
        "0.5–2 minutes an epoch",
        "hidden 512 and 6 layers",
        "in bf16, 17.1 in fp16",
    ):
        assert row in page


def test_options_that_mean_the_same_everywhere_say_the_same_everywhere():
    """As the page of commands says of `--since` and `--as-of`."""
    from flows.cli.app import _app

    texts: dict[str, set[str]] = {"--since": set(), "--as-of": set()}
    for command in typer.main.get_command(_app()).commands.values():
        for option in command.params:
            for name in texts.keys() & set(option.opts):
                texts[name].add(option.help)
    assert {name: len(found) for name, found in texts.items()} == {"--since": 1, "--as-of": 1}
    said = re.search(
        r"^(.*) mean the same wherever they appear", (ROOT / "docs/commands.md").read_text(), re.MULTILINE
    )
    assert said
    assert set(re.findall(r"--[a-z-]+", said[1])) == texts.keys()


def test_what_pages_say_of_the_simulator_and_the_library_is_so():
    last = UNTIL - timedelta(days=1)
    assert f"end on {last.day} {last:%B %Y}" in (ROOT / "docs/tutorial.md").read_text()
    needed = tomllib.loads((ROOT / "cpbmodels/pyproject.toml").read_text())["project"]["dependencies"]
    *first, last_name = [re.match(r"[\w-]+", one)[0] for one in needed]
    wanted = f"imports only {', '.join(first)} and {last_name};"
    assert wanted in " ".join((ROOT / "CONTRIBUTING.md").read_text().split())


def test_the_files_of_the_trip_are_those_there_are():
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("| package | files |")[2]
    rows = re.findall(r"^\| `([^`]+)` \| (.+) \|$", table, re.MULTILINE)
    named = [ROOT / package / name for package, files in rows for name in re.findall(r"`([^`]+)`", files)]
    assert len(named) > 50
    assert [path for path in named if not path.is_file()] == []


def test_every_block_says_whether_it_is_run_or_shown():
    assert not [b.place for b in blocks() if b.kind not in (*RUN, *SHOWN)]


def test_every_command_and_option_that_the_documents_name_exists():
    from flows.cli.app import _app

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
