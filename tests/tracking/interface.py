"""MLflow's interface as `cpb ui` starts it, in a process of its own."""

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def interface(folder, port, first=""):
    """Serve the store of `MLFLOW_TRACKING_URI`; yields the process, and the password once it answers."""
    code = f"{first}\nfrom flows.ops.serve import serve_ui\n" \
           f"serve_ui(port={port}, ready=lambda where: print(where.password, flush=True))"  # fmt: skip
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    server = subprocess.Popen(
        [sys.executable, "-c", code], cwd=folder, env=env, stdout=subprocess.PIPE, text=True
    )
    try:
        yield server, server.stdout.readline().strip()
    finally:
        server.terminate()
        try:
            server.wait(120)
        finally:
            server.kill()
