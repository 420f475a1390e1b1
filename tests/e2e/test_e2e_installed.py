"""cpb installed in each way that a user has, into an environment of its own, far from any clone.

Nothing comes from an index: every requirement is met by `wheelhouse`, so that a package of ours that an installation
asked an index for would not be found. The home is `~/.local/share/cpb`, as nothing names another.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import httpx
import psutil
import pytest

from tasks.storage.wheel import light_wheel
from tests.tools import wheelhouse
from tests.tools.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("flows", "tasks", "schemas", "webapp", "cpbmodels", "benchmarks")
FILES = ("setup.py", "pyproject.toml", "MANIFEST.in", "prefect.yaml", "README.md", "LICENSE")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    return wheelhouse.fill(tmp_path_factory.mktemp("wheels") / "house", needed)


@pytest.fixture
def source(tmp_path):
    """A copy of what a clone has; building in the clone itself would leave folders there."""
    return _source(tmp_path / "source")


def _source(folder):
    made = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, folder / name, ignore=made)
    for name in FILES:
        shutil.copy(ROOT / name, folder / name)
    return folder


def _run(*command, **options):
    options = {"env": wheelhouse.environment()} | options
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr


class Installed:
    """The environment, a user's home and an empty folder to work in."""

    def __init__(self, folder, environment, programs):
        self.folder, self.python, self.program = folder, environment / "bin/python", programs / "cpb"
        (self.packages,) = environment.glob("lib/*/site-packages")
        wheelhouse.lead_to_packages(self.packages)
        self.work = folder / "work"
        self.work.mkdir()
        (folder / "home").mkdir()
        inherited = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("CPB_", "MLFLOW_", "PREFECT_", "PYTHON", "HF_", "XDG_"))
        }
        self.env = inherited | {"HOME": str(folder / "home"), "PREFECT_WORKER_QUERY_SECONDS": "2"}
        self.share = folder / "home/.local/share/cpb"

    def cpb(self, *arguments, code=0):
        done = subprocess.run(
            [self.program, *map(str, arguments)],
            cwd=self.work,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        assert "installed beside cpb" not in done.stderr
        return done.stdout

    def json(self, *arguments, code=0):
        return json.loads(self.cpb(*arguments, "--json", code=code).strip().splitlines()[-1])


def _by_pip(folder, wheels, *what):
    _run(sys.executable, "-m", "venv", "--without-pip", folder / "env")
    _run(
        sys.executable,
        "-m",
        "pip",
        "--python",
        folder / "env/bin/python",
        "install",
        "--no-index",
        "--find-links",
        wheels,
        *what,
    )
    return Installed(folder, folder / "env", folder / "env/bin")


def by_folder(folder, wheels, source):
    """`pip install .`."""
    return _by_pip(folder, wheels, source)


def by_editable(folder, wheels, source):
    """`pip install -e .`: the source stays where it is, so the home is there too, as in a clone."""
    made = _by_pip(folder, wheels, "-e", source)
    made.share = made.work
    return made


def by_sdist(folder, wheels, source):
    """A source archive, built and then installed."""
    build = "import sys; from setuptools.build_meta import build_sdist; build_sdist(sys.argv[1])"
    _run(sys.executable, "-c", build, folder / "sdist", cwd=source)
    return _by_pip(folder, wheels, next((folder / "sdist").glob("*.tar.gz")))


def by_git(folder, wheels, source):
    """A repository's URL."""
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@localhost", "-C", source)
    _run(*git, "init", "--quiet")
    _run(*git, "add", ".")
    _run(*git, "commit", "--quiet", "--message", "All")
    return _by_pip(folder, wheels, f"git+file://{source}")


def by_uv(folder, wheels, source):
    """`uv tool install .`."""
    env = wheelhouse.environment() | {
        "UV_TOOL_DIR": str(folder / "tools"),
        "UV_TOOL_BIN_DIR": str(folder / "bin"),
    }
    _run(
        sys.executable,
        "-m",
        "uv",
        "tool",
        "install",
        "--python",
        sys.executable,
        "--no-index",
        "--find-links",
        wheels,
        source,
        env=env,
    )
    return Installed(folder, folder / "tools/cpb-forecast", folder / "bin")


def by_pipx(folder, wheels, source):
    """`pipx install .`."""
    env = wheelhouse.environment() | {"PIPX_HOME": str(folder / "pipx"), "PIPX_BIN_DIR": str(folder / "bin")}
    _run(
        sys.executable,
        "-m",
        "pipx",
        "install",
        "--python",
        sys.executable,
        f"--pip-args=--no-index --find-links {wheels}",
        source,
        env=env,
    )
    return Installed(folder, folder / "pipx/venvs/cpb-forecast", folder / "bin")


def missing(packages):
    """The clone's files that are not in the folder of an environment's packages."""
    have = {path.relative_to(packages).as_posix() for path in packages.rglob("*")}
    kinds = (".py", ".js", ".css", ".html", ".svg")
    files = [path for name in PACKAGES for path in (ROOT / name).rglob("*") if path.suffix in kinds]
    assert len(files) > 180
    return {path.relative_to(ROOT).as_posix() for path in files} - have


@pytest.mark.parametrize("way", [by_folder, by_editable, by_sdist, by_git, by_uv, by_pipx])
def test_a_training_runs_however_cpb_was_installed(way, tmp_path, wheels, source):
    """Every file is there, and one model goes all the way; the demo runs in `installed`."""
    made = way(tmp_path, wheels, source)
    assert not missing(source if way is by_editable else made.packages)
    words = "--source sim --coins BTC --timeframes 1h --preset smoke --architectures gru"
    made.cpb("train-all", *words.split())
    assert len(made.json("champions", "--market", "sim")["champions"]) == 1
    (published,) = made.share.glob("data/**/hub/cpbmodels-*.whl")
    assert published.read_bytes() == light_wheel().data  # the clone's own build: the same bytes


@pytest.fixture(scope="module")
def installed(tmp_path_factory, wheels):
    folder = tmp_path_factory.mktemp("installed")
    source = _source(folder / "source")
    _run(
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-index",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        folder / "dist",
        source,
    )
    shutil.rmtree(source)
    made = _by_pip(folder, wheels, *(folder / "dist").glob("*.whl"))
    made.cpb("demo")
    return made


@pytest.mark.parametrize("on_path", [True, False])
def test_the_demo_ends_with_commands_that_work_as_they_are_printed(installed, on_path):
    folder = os.path.relpath(installed.program.parent, installed.work)
    path = f"{installed.program.parent}:{os.environ['PATH']}" if on_path else os.environ["PATH"]

    def typed(command):
        done = subprocess.run(
            command,
            shell=True,
            cwd=installed.work,
            env=installed.env | {"PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done

    program = "cpb" if on_path else f"{folder}/cpb"
    ended = typed(f"{program} demo")
    assert re.search(r"^1h \(market sim\): the close of .* UTC$", ended.stdout, re.MULTILINE | re.DOTALL)
    question, *others = [line.strip() for line in ended.stderr.partition("Next:\n")[2].splitlines()[::2]]
    assert others == [
        f"{program} serve",
        f"{program} ui",
        f"{program} train-all --coins BTC,ETH --timeframes 1h",
    ]
    assert question.startswith(f"{program} forecast BTC 1h --source sim --target ")
    assert "reached first?" in typed(question).stdout


def test_every_module_and_file_is_in_the_environment_and_none_of_the_clone_is_used(installed):
    code = "import importlib, sys; print(*(importlib.import_module(n).__file__ for n in sys.argv[1:]), sep=chr(10))"
    names = ("flows.cli", "tasks.storage.wheel", "schemas.scope", "webapp.app", "cpbmodels.data.columns")
    shown = subprocess.run(
        [installed.python, "-c", code, *names],
        cwd=installed.work,
        env=installed.env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert all(Path(line).is_relative_to(installed.packages) for line in shown.stdout.split())
    assert not missing(installed.packages)


def test_the_demo_leaves_everything_in_the_users_folder_and_nothing_in_the_current_one(installed):
    assert list(installed.work.iterdir()) == []
    assert {path.name for path in installed.share.iterdir()} >= {"data", "mlruns"}


def test_the_page_is_served_with_its_files(installed):
    port = free_port()
    command = [installed.program, "serve", "--port", str(port)]
    with subprocess.Popen(
        command, cwd=installed.work, env=installed.env, stdout=subprocess.DEVNULL
    ) as served:
        try:
            client = httpx.Client(
                base_url=f"http://127.0.0.1:{port}",
                trust_env=False,
                timeout=30,
                transport=httpx.HTTPTransport(retries=8),
            )
            assert "<title>" in client.get("/").text
            for path in (ROOT / "webapp/static").glob("*.js"):
                assert client.get(f"/static/{path.name}").text == path.read_text()
        finally:
            served.terminate()
            served.wait(60)


def test_the_deployment_runs_and_is_stopped(installed):
    port = free_port()
    try:
        result = installed.json("deploy", "up", "--port", port)
        assert result["started"] == ["server", "worker"]
        done = installed.json("deploy", "run", "forecast/hourly", "--watch", "--param", "source=sim")
        assert done["state"] == "Completed"
    finally:
        installed.json("deploy", "down")
    assert (installed.share / ".cpb/server.log").is_file()
    assert not (installed.packages / "data").exists()
    running = [process.info["cmdline"] or [""] for process in psutil.process_iter(["cmdline"])]
    assert not [command for command in running if command[0].startswith(str(installed.folder))]
