"""docs/colab.ipynb, run as on Colab: the clone is fetched, pip installs into a Python without venv and ensurepip.

Third-party packages are those of the Python that runs the tests, read through a .pth file, so that pip installs only
cpb's two distributions and needs no network.
"""

import io
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tarfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import polars as pl
import psutil
import pytest

import cpbmodels
from tasks.tracking.archive import archives

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "docs/colab.ipynb"
MARKET = ROOT / "../shared/market"

NO_VENV = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("ensurepip", "venv"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
"""
CHECK = "assert globals().get('_exit_code', 0) == 0, _exit_code"
"""After each cell: a `!` or `%pip` line that fails stops no notebook."""


@pytest.fixture
def python(tmp_path):
    """A Python with third-party packages and pip, without cpb, cpbmodels, venv and ensurepip."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "python"], check=True)
    (packages,) = (tmp_path / "python").glob("lib/*/site-packages")
    places = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (packages / "third_party.pth").write_text("\n".join([*places, "import absent_venv"]))
    (packages / "absent_venv.py").write_text(NO_VENV)
    python = tmp_path / "python/bin/python"
    for missing in ("flows", "cpbmodels", "ensurepip", "venv"):
        done = ask(python, f"import {missing}")
        assert "ModuleNotFoundError" in done.stderr
    return python


@pytest.fixture
def repo(tmp_path):
    """The project as a git repository."""
    made = shutil.ignore_patterns(
        ".git", ".venv*", ".hypothesis", "build", "dist", "*.egg-info", ".*_cache", "__pycache__"
    )

    def kept_out(folder, names):
        made_here = {"data", "mlruns"} if Path(folder) == ROOT else set()  # packages have folders called data
        return made(folder, names) | made_here

    folder = shutil.copytree(ROOT, tmp_path / "repo", ignore=kept_out)
    git = ("git", "-C", folder, "-c", "user.name=test", "-c", "user.email=test@localhost")
    for command in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "-m", "all"]):
        subprocess.run([*git, *command], check=True)
    return folder


def clean_environment(**settings):
    inherited = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("CPB_", "MLFLOW_", "PYTHON", "HF_", "JUPYTER"))
    }
    # pip: nothing from an index; "0" is how its environment says --no-build-isolation
    return inherited | {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0"} | settings


def ask(python, code):
    return subprocess.run(
        [python, "-c", code],
        cwd=python.parent,
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )


def execute(python, folder, monkeypatch, *, without=(), after="", **settings):
    """Run the notebook's cells in `folder`, but those that begin as in `without`, and a cell with the code `after`."""
    import nbformat
    from nbclient import NotebookClient

    spec = folder.parent / "jupyter/kernels/clean/kernel.json"
    spec.parent.mkdir(parents=True, exist_ok=True)
    launch = [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec.write_text(json.dumps({"argv": launch, "display_name": "clean", "language": "python"}))
    monkeypatch.setenv("JUPYTER_PATH", str(folder.parent / "jupyter"))

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    cells = [cell for cell in cells if not (without and cell.source.startswith(without))]
    checked = [part for cell in cells for part in (cell, nbformat.v4.new_code_cell(CHECK))]
    notebook.cells = [*checked, nbformat.v4.new_code_cell(after)]
    client = NotebookClient(
        notebook, timeout=900, kernel_name="clean", resources={"metadata": {"path": str(folder)}}
    )
    client.execute(env=clean_environment(**settings))
    return [*cells, notebook.cells[-1]]


def printed(cells):
    return "".join(o.text for cell in cells for o in cell.outputs if o.output_type == "stream")


def shown(cells, kind):
    return [o.data[kind] for cell in cells for o in cell.outputs if kind in o.get("data", {})]


BOARD = "print(board.write_json())"
DOCTOR = ("!cpb doctor",)
"""The cell that times steps for half a minute."""


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_every_cell_runs_on_a_python_without_ensurepip_and_the_next_session_goes_on(
    python, repo, tmp_path, monkeypatch
):
    session, kept = tmp_path / "session", tmp_path / "kept"
    session.mkdir()
    settings = {"CPB_REPO": repo.as_uri(), "CPB_SOURCE": "sim", "CPB_PRESET": "smoke", "CPB_KEEP": str(kept)}
    torch_before = ask(python, "import torch; print(torch.__version__, torch.__file__)").stdout

    # Where the real klines are, the test of the stored output runs it.
    without = DOCTOR if MARKET.is_dir() else ()
    cells = execute(python, session, monkeypatch, without=without, after=BOARD, **settings)
    first = printed(cells)
    assert (session / "cpb/flows").is_dir()
    assert len(shown(cells, "image/png")) == 2
    assert len(shown(cells, "text/html")) == 4
    assert without or "problems: none" in first
    assert first.count("kept: ") > 1  # not only at the end
    assert "chance that each price is touched" in first
    assert re.search(r"chance that the target [\d,]+ is reached before the stop [\d,]+ within", first)
    assert "not published" in first
    rows = pl.read_json(io.StringIO(printed(cells[-1:])))
    assert set(rows["architecture"]) == {"transformer", "gru", "lstm", "linear", "har"}
    assert set(rows["members"]) == {2}
    assert ask(python, "import torch; print(torch.__version__, torch.__file__)").stdout == torch_before
    assert (python.parent / "cpb").exists()

    newest = archives(kept)[0]
    with tarfile.open(newest) as archive:
        archive.extractall(tmp_path / "looked-at", filter="data")
    with sqlite3.connect(tmp_path / "looked-at/mlruns/mlflow.db") as database:
        assert database.execute("pragma integrity_check").fetchall() == [("ok",)]

    shutil.rmtree(session / "cpb-store")  # a new machine: what was kept is all that there is
    git = ("git", "-C", repo, "-c", "user.name=test", "-c", "user.email=test@localhost")
    (repo / "docs/new.md").write_text("# New\n")
    for command in (["add", "--all"], ["commit", "--quiet", "-m", "new"]):
        subprocess.run([*git, *command], check=True)
    again = execute(python, session, monkeypatch, without=DOCTOR, after=BOARD, **settings)
    assert f"went on from {newest}" in printed(again)
    assert "cpb was updated from " in printed(again)
    assert (session / "cpb/docs/new.md").is_file()
    assert "going on with the training that was cut off" not in printed(again)
    told = pl.read_json(io.StringIO(printed(again[-1:])))
    # seconds of training, too: nothing was trained again
    assert told.drop("run_id").equals(rows.drop("run_id"))


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_session_that_ends_between_two_fleets_goes_on_with_the_rest(python, repo, tmp_path, monkeypatch):
    from nbclient.exceptions import DeadKernelError

    session, kept = tmp_path / "session", tmp_path / "kept"
    session.mkdir()
    settings = {"CPB_REPO": repo.as_uri(), "CPB_SOURCE": "sim", "CPB_PRESET": "smoke", "CPB_KEEP": str(kept)}
    ended = threading.Event()

    def end_of_the_machine():
        """Kill the kernel, its `cpb` and its trainers when the first fleet has been archived."""
        while not (kept.is_dir() and archives(kept)):
            time.sleep(0.05)
        (kernel,) = [p for p in psutil.Process().children() if "ipykernel_launcher" in " ".join(p.cmdline())]
        for process in (kernel, *kernel.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        ended.set()

    killer = threading.Thread(target=end_of_the_machine, daemon=True)
    killer.start()
    with pytest.raises(DeadKernelError):
        execute(python, session, monkeypatch, without=DOCTOR, **settings)
    assert ended.wait(60)
    shutil.rmtree(session / "cpb-store")

    again = execute(python, session, monkeypatch, without=DOCTOR, after=BOARD, **settings)
    text = printed(again)
    assert "went on from" in text
    assert "going on with the training that was cut off, and its candles" in text
    assert re.search(r"^trained .*trained before by the same command", text, re.MULTILINE)
    rows = pl.read_json(io.StringIO(printed(again[-1:])))
    assert set(rows["architecture"]) == {"transformer", "gru", "lstm", "linear", "har"}
    assert set(rows["members"]) == {2}


VARIES = re.compile(r"(train|judge) \S+: |\S+  (epoch|stage|fitted) |kept: |Data on ")
"""Lines of a training that come by the clock, or once per fleet, in an order that no two runs share."""
ARCHITECTURES = rf"\b({'|'.join(sorted(cpbmodels.architectures(), key=len, reverse=True))})(-universal)?\b"


def shape(text):
    """A line without what differs from run to run and chip to chip: numbers, digests, which model, verdicts, spaces."""
    text = re.sub(r"\b(?=\w*\d)[0-9a-f]{7,}\b", "D", text)
    text = re.sub(rf"{ARCHITECTURES}(, {ARCHITECTURES})*", "A", text)
    text = re.sub(r"\d[\d.,:]*", "0", re.sub(r"\b(better|worse|no different)\b", "V", text))
    return re.sub(r"[─\s]+", " ", text).strip()


def shapes(cells):
    """What each cell prints: the shapes of its lines, and of its tables."""
    told = []
    for cell in cells:
        lines = [line for line in printed([cell]).replace("\r", "\n").splitlines() if not VARIES.match(line)]
        if cell["source"].startswith(DOCTOR):  # the rest is of this machine
            lines = [line for line in lines if line.startswith("  architecture")]
        tables = [line for table in shown([cell], "text/plain") for line in table.splitlines()]
        told.append(sorted({shape(line) for line in (*lines, *tables)} - {""}))
    return told


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.skipif(not MARKET.is_dir(), reason="what is stored was computed from real klines")
def test_the_stored_output_is_what_it_prints(python, repo, tmp_path, monkeypatch, request):
    """With `--notebook-write` it is stored anew instead, as if `/content` were the folder and Drive were there."""
    import nbformat

    session = tmp_path / "s"
    for coin in ("BTCUSDT", "ETHUSDT"):
        for period in ("monthly", "daily"):
            place = f"data/spot/{period}/klines/{coin}/1h"
            shutil.copytree(MARKET / place, session / "mirror" / place)
    settings = {"CPB_REPO": repo.as_uri(), "CPB_SOURCE": str(session / "mirror"), "CPB_AS_OF": "2025-06-06"}
    cells = execute(python, session, monkeypatch, CPB_KEEP=str(session / "drive/MyDrive/cpb"), **settings)[
        :-1
    ]
    for number, cell in enumerate(cells, 1):
        cell.execution_count = number
        cell.metadata.pop("execution", None)
        for output in cell.outputs:
            if "execution_count" in output:
                output.execution_count = number
            if "text" in output:
                output.text = output.text.replace(str(session), "/content")
    stored = nbformat.read(NOTEBOOK, as_version=4)
    of_code = [cell for cell in stored.cells if cell.cell_type == "code"]
    if request.config.getoption("--notebook-write", default=False):
        for cell, made in zip(of_code, cells, strict=True):
            cell.outputs, cell.execution_count = made.outputs, made.execution_count
        NOTEBOOK.write_text(nbformat.writes(stored).rstrip("\n") + "\n")
    assert "problems: none" in printed(cells)
    assert shapes(cells) == shapes(of_code)


def test_the_stored_notebook_shows_results_and_tells_nothing_of_the_machine_that_made_it():
    text = NOTEBOOK.read_text()
    assert len(text) < 400_000
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error"]
    places = ("/home/", "/Users/", "/root/", "/tmp/", str(ROOT))
    assert not [place for place in places if place in json.dumps(outputs)]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    kinds = [kind for output in outputs for kind in output.get("data", {})]
    assert kinds.count("image/png") == 2
    assert kinds.count("text/html") == 4
    assert "colab.research.google.com/github/" in text
