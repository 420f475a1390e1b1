"""MLflow's server for several machines, started by exactly the command of docs/cluster.md."""

import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

from tests.tools.ports import free_port
from tests.tools.trainer_tools import wait_until

ROOT = Path(__file__).resolve().parents[2]


def documented(database, port):
    """The head's lines of docs/cluster.md, with this database and port."""
    text = (ROOT / "docs/cluster.md").read_text()
    (block,) = re.findall(r"```sh\n(# on the head\n.*?)\n# on every", text, re.DOTALL)
    lines = [line for line in block.splitlines() if not line.startswith((".venv/bin/python -m pip", "#"))]
    text = "\n".join(lines)
    assert text.count("postgresql://USER:PASSWORD@HOST/mlflow") == text.count("--port 5000") == 1
    return text.replace("postgresql://USER:PASSWORD@HOST/mlflow", database).replace("5000", str(port))


@contextmanager
def documented_server(folder, database):
    """Run it with a home of its own; yields the process, the URL, the password and a function that kills everything."""
    import httpx

    folder.mkdir(parents=True)
    port = free_port()
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("CPB_", "MLFLOW_", "PREFECT_API"))}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(
            ["bash", "-ec", documented(database, port)],
            cwd=folder,
            env=kept | {"HOME": str(folder), "PATH": path},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    def kill():
        os.killpg(server.pid, signal.SIGKILL)
        server.wait(30)

    def answers():
        assert server.poll() is None, (folder / "log").read_text()
        try:
            return (
                httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False, timeout=30).status_code == 200
            )
        except httpx.TransportError:
            return False

    try:
        wait_until(answers, 240)
        (password,) = re.findall("admin_password = (.+)", (folder / "mlflow/auth.ini").read_text())
        yield server, f"http://127.0.0.1:{port}", password, kill
    finally:
        if server.poll() is None:
            kill()
