"""The kernels without a GPU: run in Triton's interpreter against float64, and compiled for chips that are not here.

The checks are the files check_*.py beside this one. Whether Triton interprets or compiles is decided when a kernel's
module is imported, so each file runs in a process of its own: `check_interpreted_*` with TRITON_INTERPRET,
`check_compiled.py` without.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

HERE = Path(__file__).parent
INTERPRETED = sorted(path.name for path in HERE.glob("check_interpreted_*.py"))
COMPILED = sorted(path.name for path in HERE.glob("check_compiled*.py"))


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("name", INTERPRETED + COMPILED)
def test_kernels(name, tmp_path):
    interpreted = {"TRITON_INTERPRET": "1"} if name.startswith("check_interpreted_") else {}
    environment = {**os.environ, **interpreted, "TRITON_CACHE_DIR": str(tmp_path)}
    options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "--timeout", "900"]
    command = [sys.executable, "-m", "pytest", *options, str(HERE / name)]
    run = subprocess.run(
        command, env=environment, cwd=HERE.parents[1], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
