"""MLflow's interface as `cpb ui` starts it, in a process of its own."""

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def interface(folder, port, told="where.sign_in", first=""):
    """Serve the store of a folder; yields the process, and the line that it prints of `where` once it answers."""
    code = f"import json\n{first}\nfrom flows.ops.ui import serve_ui\n" \
           f"serve_ui(port={port}, ready=lambda where: print({told}, flush=True))"  # fmt: skip
    env = os.environ | {"PYTHONPATH": str(ROOT), "XDG_CONFIG_HOME": str(folder / "config")}
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
