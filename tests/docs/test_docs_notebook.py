"""The functions and the form of docs/colab.ipynb, without Jupyter; tests/e2e/test_e2e_notebook.py runs its cells."""

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import types
from contextlib import suppress
from pathlib import Path

import pytest

from schemas.run import RunSpec
from tasks.tracking.archive import KEEP
from tests.tools.doc_blocks import ROOT

NOTEBOOK = json.loads((ROOT / "docs/colab.ipynb").read_text())
CODE = ["".join(cell["source"]) for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]


def cell_with(text):
    (cell,) = [cell for cell in CODE if text in cell]
    return cell


def functions(cell, **names):
    """The functions of a cell, in a module's namespace with its imports; lines of Jupyter are left out."""
    plain = re.sub(r"^[ \t]*[!%].*$", "", cell, flags=re.MULTILINE)
    kept = [
        node
        for node in ast.parse(plain).body
        if isinstance(node, ast.Import | ast.ImportFrom | ast.FunctionDef)
    ]
    exec(compile(ast.Module(kept, type_ignores=[]), "cell", "exec"), names)
    return names


def git(*words, within):
    options = ("-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "init.defaultBranch=trunk")
    done = subprocess.run(["git", "-C", within, *options, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def committed(folder, name, text):
    (folder / name).write_text(text)
    git("add", name, within=folder)
    git("commit", "--quiet", "-m", name, within=folder)
    return git("rev-parse", "HEAD", within=folder)


@pytest.fixture(autouse=True)
def no_keep(monkeypatch):
    """What a cell writes into the environment of this process is taken out again at the test's end."""
    monkeypatch.setenv(KEEP, "set, so that its absence is restored")
    monkeypatch.delenv(KEEP)


@pytest.fixture
def origin(tmp_path):
    folder = tmp_path / "origin"
    folder.mkdir()
    git("init", "--quiet", within=folder)
    committed(folder, "code.py", "old")
    return folder


@pytest.fixture
def install(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "cpbmodels"]:
        monkeypatch.delitem(sys.modules, name)
    return functions(cell_with("def brought_up_to_date"))


@pytest.fixture
def clone(origin, tmp_path, install):
    """A clone as the notebook makes it, and the address that it has."""
    install["git"]("clone", "--quiet", "--depth", "1", origin.as_uri(), str(tmp_path / "cpb"))
    return tmp_path / "cpb", origin.as_uri()


def test_an_old_clone_is_brought_to_the_newest_commit(clone, origin, install):
    folder, address = clone
    before = git("rev-parse", "HEAD", within=folder)
    assert "is up to date" in install["brought_up_to_date"](folder, address)
    for number in range(2):  # a second session, and a third
        after = committed(origin, "code.py", f"new {number}")
        (folder / "data").mkdir(exist_ok=True)
        (folder / "data/model").write_text("mine")
        said = install["brought_up_to_date"](folder, address)
        assert said == f"{folder} was updated from {before[:8]} to {after[:8]}"
        assert (folder / "code.py").read_text() == f"new {number}"
        assert (folder / "data/model").read_text() == "mine"
        before = after
    assert "is up to date" in install["brought_up_to_date"](
        folder, ""
    )  # nothing says where Colab opened it from


def test_a_session_that_has_loaded_the_old_code_is_to_be_restarted(clone, origin, install, monkeypatch):
    folder, address = clone
    committed(origin, "code.py", "new")
    monkeypatch.setitem(sys.modules, "cpbmodels", types.ModuleType("cpbmodels"))
    with pytest.raises(SystemExit, match="restart the session"):
        install["brought_up_to_date"](folder, address)
    assert "is up to date" in install["brought_up_to_date"](folder, address)


def changed(folder):
    (folder / "code.py").write_text("mine")


def staged(folder):
    (folder / "mine.py").write_text("mine")
    git("add", "mine.py", within=folder)


def with_a_commit(folder):
    committed(folder, "mine.py", "mine")


def on_another_branch(folder):
    git("checkout", "--quiet", "-b", "mine", within=folder)


def at_no_branch(folder):
    git("checkout", "--quiet", "--detach", within=folder)


def in_the_way(folder):
    (folder / "added.py").write_text("mine")  # the new commit has such a file


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (changed, "has changes of yours, so it is not updated"),
        (staged, "has changes of yours, so it is not updated"),
        (with_a_commit, "has commits of yours, so it is not updated"),
        (on_another_branch, "is not updated: "),
        (at_no_branch, "is not updated: "),
        (in_the_way, "is not updated: "),
    ],
)
def test_a_changed_clone_is_told_and_keeps_every_file(clone, origin, install, change, said):
    folder, address = clone
    change(folder)

    def state():
        files = {path.name: path.read_text() for path in folder.glob("*.py")}
        return files, git("rev-parse", "HEAD", within=folder), git("status", "--porcelain", within=folder)

    before = state()
    committed(origin, "code.py", "new")
    committed(origin, "added.py", "new")
    assert said in install["brought_up_to_date"](folder, address)
    assert state() == before


def test_a_clone_of_somebody_else_is_used_as_it_is(origin, install, tmp_path):
    folder = tmp_path / "cpb"
    git("clone", "--quiet", origin.as_uri(), folder, within=tmp_path)  # whole, as people clone
    before = git("rev-parse", "HEAD", within=folder)
    committed(origin, "code.py", "new")
    assert "is not a clone that this notebook made" in install["brought_up_to_date"](folder, origin.as_uri())
    assert git("rev-parse", "HEAD", within=folder) == before
    shutil.rmtree(folder / ".git")
    assert "is not updated" in install["brought_up_to_date"](folder, origin.as_uri())


def test_a_clone_of_another_address_is_used_as_it_is(clone, origin, install):
    folder, address = clone
    committed(origin, "code.py", "new")
    assert "is a clone of another address" in install["brought_up_to_date"](
        folder, "https://localhost/other/cpb.git"
    )
    assert (folder / "code.py").read_text() == "old"
    assert "was updated" in install["brought_up_to_date"](folder, f"{address}/")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("https://github.com/me/cpb.git", "https://github.com/me/cpb", True),
        ("https://me:token@github.com/me/cpb", "https://github.com/me/cpb/", True),
        ("https://github.com/me/cpb", "https://github.com/you/cpb", False),
    ],
)
def test_which_addresses_are_of_one_repository(install, one, other, same):
    assert install["same_address"](one, other) is same


def test_where_the_network_is_away_the_clone_is_used_and_no_token_is_shown(clone, origin, install):
    folder, _ = clone
    address = "http://me:secret@127.0.0.1:9/me/cpb.git"
    git("remote", "set-url", "origin", address, within=folder)
    said = install["brought_up_to_date"](folder, address)
    assert said.startswith(f"{folder} is not updated: ")
    assert "secret" not in said
    with pytest.raises(SystemExit) as ended:
        install["git"]("clone", "--quiet", address, str(folder / "other"))
    assert "secret" not in str(ended.value)


def form(name):
    """The default and the choices of a field of the notebook's forms."""
    (line,) = [line for cell in CODE for line in cell.splitlines() if re.match(rf"{name} = .*# @param", line)]
    value, _, choices = line.partition(" = ")[2].partition("# @param")
    return ast.literal_eval(value.strip()), choices.strip()


def presets_of_the_form():
    """What `PRESETS` holds when the training cell has run."""
    cell = cell_with("PRESETS = {")
    nodes = [
        node
        for node in ast.parse(re.sub(r"^!.*$", "", cell, flags=re.MULTILINE)).body
        if "PRESETS" in ast.unparse(node)
    ]
    names = {}
    for node in nodes[:2]:
        exec(ast.unparse(node), names)
    return names["PRESETS"]


def scopes_of_the_form():
    (found,) = re.findall(r"COINS, TIMEFRAMES = (\{.*\})\[", cell_with("PRESETS = {"))
    return ast.literal_eval(found)


def test_each_plan_trains_what_it_says():
    chosen, choices = form("PLAN")
    assert chosen == "default"
    assert json.loads(choices) == [*presets_of_the_form()] == ["default", "transformer", "GRU", "LSTM", "all"]
    trained = {
        plan: {fleet.architecture for fleet in RunSpec(preset=preset).fleets}
        for plan, preset in presets_of_the_form().items()
    }
    assert trained["transformer"] == {"transformer"}
    assert trained["GRU"] == {"gru"}
    assert trained["LSTM"] == {"lstm"}
    assert trained["all"] == trained["default"] | {"transformer", "gru", "lstm"}


def test_two_or_forty_models_of_an_architecture():
    chosen, choices = form("MODELS")
    assert chosen == json.loads(choices)[0]
    for choice in json.loads(choices):
        number = choice.partition(":")[0]
        coins, timeframes = scopes_of_the_form()[number]
        assert len(RunSpec(coins=coins, timeframes=timeframes).scope.series) == int(number)


def test_the_run_that_was_cut_off_is_known_by_what_its_parameters_hold():
    """MLflow's params of a flow's run are its specification's fields as they were given."""
    for coins, timeframes in scopes_of_the_form().values():
        for preset in presets_of_the_form().values():
            asked = {"coins": coins, "timeframes": timeframes, "preset": preset}
            assert asked.items() <= RunSpec(**asked).model_dump(mode="json").items()


def test_the_commands_of_the_cells_are_accepted():
    import typer

    from flows.cli.app import _app

    commands = typer.main.get_command(_app()).commands
    lines = [
        line.removeprefix("!cpb ") for cell in CODE for line in cell.splitlines() if line.startswith("!cpb ")
    ]
    assert lines == ["doctor", "train-all {options}"]
    since, _ = form("SINCE")
    options = f"--coins all --timeframes 15m,1h --since {since} --preset seed-gru,default --epochs 5"
    options += " --source sim --as-of 2025-06-06 --offline"
    assert commands["train-all"].make_context("train-all", shlex.split(options)).params["offline"] is True
    assert commands["publish"].make_context("publish", ["--repo", "me/cpb", "--market", "sim"])
    assert commands["leaderboard"].make_context("leaderboard", ["--json"])
    assert commands["doctor"].make_context("doctor", [])


class Drive:
    """Stands in for Colab's module `google.colab`: Drive, and the secrets."""

    def __init__(self, monkeypatch, *, error=None, secrets=None):
        self.mounted, self.error = [], error
        drive, userdata = types.SimpleNamespace(mount=self.mount), types.SimpleNamespace(get=self.get)
        self.secrets = secrets or {}
        colab = types.ModuleType("google.colab")
        colab.drive, colab.userdata = drive, userdata
        monkeypatch.setitem(sys.modules, "google", types.ModuleType("google"))
        monkeypatch.setitem(sys.modules, "google.colab", colab)

    def mount(self, place):
        if self.error:
            raise self.error
        self.mounted.append(place)

    def get(self, name):
        if name not in self.secrets:
            raise KeyError(name)
        return self.secrets[name]


def find_keep(monkeypatch, tmp_path, **names):
    cell = functions(
        cell_with("def find_keep"), **{"ON_COLAB": False, "ON_KAGGLE": False, "KEEP_ON_DRIVE": True, **names}
    )
    real = Path
    cell["Path"] = lambda text: (
        tmp_path / str(text).lstrip("/") if str(text).startswith(("/content", "/kaggle")) else real(text)
    )
    return cell["find_keep"]()


def test_drive_is_mounted_and_gets_the_archives(monkeypatch, tmp_path):
    monkeypatch.delenv(KEEP, raising=False)
    drive = Drive(monkeypatch)
    folder = find_keep(monkeypatch, tmp_path, ON_COLAB=True)
    assert drive.mounted == ["/content/drive"]
    assert folder == tmp_path / "content/drive/MyDrive/cpb"
    assert folder.is_dir()
    assert os.environ[KEEP] == str(folder)


def test_a_refused_drive_is_told_and_nothing_is_kept_elsewhere(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv(KEEP, str(tmp_path / "of an earlier cell"))
    Drive(monkeypatch, error=ValueError("mount failed"))
    assert find_keep(monkeypatch, tmp_path, ON_COLAB=True) is None
    assert KEEP not in os.environ
    assert "nothing is kept, as Drive could not be mounted: mount failed" in capsys.readouterr().out
    assert not [*tmp_path.iterdir()]


def test_where_else_it_is_kept(monkeypatch, tmp_path):
    monkeypatch.delenv(KEEP, raising=False)
    drive = Drive(monkeypatch)
    assert find_keep(monkeypatch, tmp_path, ON_COLAB=True, KEEP_ON_DRIVE=False) is None
    assert find_keep(monkeypatch, tmp_path) is None
    assert drive.mounted == []
    assert find_keep(monkeypatch, tmp_path, ON_KAGGLE=True) == tmp_path / "kaggle/working"
    monkeypatch.setenv(KEEP, str(tmp_path / "mine"))
    assert find_keep(monkeypatch, tmp_path) == tmp_path / "mine"


def last_cell(monkeypatch, capsys, tmp_path, **names):
    """Run the last cell from the token on, with a `cpb` that notes what it is called with; what it printed."""
    cell = CODE[-1]
    program = tmp_path / "bin/cpb"
    program.parent.mkdir(exist_ok=True)
    program.write_text('#!/bin/sh\necho "$@ ${HF_TOKEN:+with a token}" >> "$CALLS"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    scope = functions(
        cell, **{"os": os, "subprocess": subprocess, "KEEP": None, "SOURCE": "", "ON_KAGGLE": False, **names}
    )
    exec(cell[cell.index("token = hub_token()") :], scope)
    return capsys.readouterr().out


def calls(tmp_path):
    with suppress(FileNotFoundError):
        return (tmp_path / "calls").read_text()
    return ""


def test_the_last_cell_publishes_with_the_secret_and_never_shows_it(monkeypatch, capsys, tmp_path):
    token = "hf_0123456789abcdef"
    Drive(monkeypatch, secrets={"HF_TOKEN": token})
    monkeypatch.delenv("HF_TOKEN", raising=False)
    printed = last_cell(monkeypatch, capsys, tmp_path, ON_COLAB=True, HUB_REPO="me/cpb")
    assert calls(tmp_path) == "publish --repo me/cpb with a token\n"
    assert token not in printed
    assert token not in json.dumps(NOTEBOOK)
    assert "HF_TOKEN" not in os.environ  # of later cells


@pytest.mark.parametrize(("repo", "said"), [("", "HUB_REPO is not set"), ("me/cpb", "HF_TOKEN is not set")])
def test_without_a_token_or_a_name_nothing_is_published(monkeypatch, capsys, tmp_path, repo, said):
    Drive(monkeypatch)
    printed = last_cell(monkeypatch, capsys, tmp_path, ON_COLAB=True, HUB_REPO=repo)
    assert printed.endswith(f"not published: {said}\n")
    assert calls(tmp_path) == ""


def test_why_the_store_is_not_on_drive_is_said_where_it_is_placed():
    cell = cell_with('WORK / "cpb-store"')
    assert re.search(r"# .*local disk.*\n(# .*\n)*.*WAL", cell)
