"""cpb installed as a user installs it, from two wheels into an environment of its own, far from any clone.

Third-party packages are those of the Python that runs the tests, read through a .pth file; what pip installs is the two
wheels. The home is `~/.local/share/cpb`, as nothing names another.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import psutil
import pytest
from ports import free_port

from tasks.storage.wheel import light_wheel

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("flows", "tasks", "schemas", "webapp", "cpbmodels")
FILES = ("setup.py", "pyproject.toml", "prefect.yaml", "README.md", "LICENSE")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


class Installed:
    """The environment, a user's home and an empty folder to work in."""

    def __init__(self, folder, wheels):
        self.folder, self.wheels = folder, wheels
        subprocess.run([sys.executable, "-m", "venv", folder / "env"], check=True)
        self.python = folder / "env/bin/python"
        subprocess.run(
            [self.python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", *wheels], check=True
        )
        (self.packages,) = folder.glob("env/lib/*/site-packages")
        result = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
        # The .pth files in these folders, which lead to the clone, are not read.
        (self.packages / "third_party.pth").write_text("\n".join(result))
        self.work = folder / "work"
        self.work.mkdir()
        inherited = {
            key: value for key, value in os.environ.items()
            if not key.startswith(("CPB_", "MLFLOW_", "PREFECT_", "PYTHON", "HF_", "XDG_"))
        }  # fmt: skip
        self.env = inherited | {"HOME": str(folder / "home"), "PREFECT_WORKER_QUERY_SECONDS": "2"}
        self.share = folder / "home/.local/share/cpb"

    def cpb(self, *arguments, code=0):
        done = subprocess.run(
            [self.folder / "env/bin/cpb", *map(str, arguments)],
            cwd=self.work, env=self.env, capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def json(self, *arguments, code=0):
        return json.loads(self.cpb(*arguments, "--json", code=code).strip().splitlines()[-1])


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("installed")
    source = _source(folder / "source")
    for place in (source / "cpbmodels", source):
        subprocess.run(
            [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-index", "--no-deps", "--no-build-isolation",
             "--wheel-dir", folder / "dist", place],
            check=True,
        )  # fmt: skip
    shutil.rmtree(source)
    made = Installed(folder, sorted((folder / "dist").glob("*.whl")))
    made.cpb("demo")
    return made


def _source(folder):
    """A copy of what a clone has; building in the clone itself would leave folders there."""
    made = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, folder / name, ignore=made)
    for name in FILES:
        shutil.copy(ROOT / name, folder / name)
    return folder


def test_every_module_and_file_is_in_the_environment_and_none_of_the_clone_is_used(installed):
    code = "import importlib, sys; print(*(importlib.import_module(n).__file__ for n in sys.argv[1:]), sep=chr(10))"
    names = ("flows.cli", "tasks.storage.wheel", "schemas.scope", "webapp.app", "cpbmodels.data.columns")
    shown = subprocess.run(
        [installed.python, "-c", code, *names], cwd=installed.work, env=installed.env, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    assert all(Path(line).is_relative_to(installed.packages) for line in shown.stdout.split())
    have = {path.relative_to(installed.packages).as_posix() for path in installed.packages.rglob("*")}
    kinds = (".py", ".js", ".css", ".html", ".svg")
    files = [path for name in PACKAGES for path in (ROOT / name).rglob("*") if path.suffix in kinds]
    assert len(files) > 180
    assert not {path.relative_to(ROOT).as_posix() for path in files} - have


def test_the_demo_leaves_everything_in_the_users_folder_and_nothing_in_the_current_one(installed):
    assert list(installed.work.iterdir()) == []
    assert {path.name for path in installed.share.iterdir()} >= {"data", "mlruns"}
    (published,) = installed.share.glob("data/**/hub/cpbmodels-*.whl")
    assert published.read_bytes() == light_wheel().data  # the clone's own build: the same bytes


def test_the_page_is_served_with_its_files(installed):
    port = free_port()
    command = [installed.folder / "env/bin/cpb", "serve", "--port", str(port)]
    with subprocess.Popen(
        command, cwd=installed.work, env=installed.env, stdout=subprocess.DEVNULL
    ) as served:
        try:
            client = httpx.Client(
                base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=30,
                transport=httpx.HTTPTransport(retries=8),
            )  # fmt: skip
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
