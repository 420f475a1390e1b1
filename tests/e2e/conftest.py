import json
import os
import subprocess
import sys

import pytest


def pytest_addoption(parser):
    parser.addoption(
        "--notebook-write", action="store_true", help="store what the cells of docs/colab.ipynb print"
    )


class Cpb:
    """The command line in a folder of its own.

    A call without settings of its own is a child of the fork server in `forking`; any other, and what `start` starts,
    is a Python of its own.
    """

    def __init__(self, folder, forking):
        self.folder = folder
        self.program = forking / "cpb"
        self.env = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith(("CPB_", "MLFLOW_TRACKING", "PREFECT_API"))
        }

    def __call__(self, *arguments, timeout=600, **env):
        program = [sys.executable, "-m", "flows.cli"] if env else [self.program]
        return subprocess.run(
            [*program, *map(str, arguments)],
            cwd=self.folder,
            env=self.env | env,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def json(self, *arguments, code=0, **env):
        done = self(*arguments, "--json", **env)
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout.strip().splitlines()[-1])

    def start(self, *arguments):
        return subprocess.Popen(
            [sys.executable, "-m", "flows.cli", *map(str, arguments)],
            cwd=self.folder,
            env=self.env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    @staticmethod
    def kill(process):
        process.kill()  # nothing if it has ended
        process.wait()


@pytest.fixture
def cpb(tmp_path, forking):
    return Cpb(tmp_path, forking)
