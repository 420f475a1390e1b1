import re
import shutil
import subprocess
from pathlib import Path

import pytest

from flows.deploy.services import ROOT
from flows.deploy.units import units


@pytest.fixture
def parts(monkeypatch, tmp_path):
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "a folder with 100%"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql://user:secret@host/db")
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "cpb:secret")
    text = units(4321, 3)
    assert "secret" not in text
    pieces = re.split(r"^# ~/\.config/systemd/user/(\S+)\n", text, flags=re.MULTILINE)
    return dict(zip(pieces[1::2], pieces[2::2], strict=True))


def test_server_worker_and_a_regular_check_have_units(parts):
    assert list(parts) == [
        "cpb-server.service",
        "cpb-worker.service",
        "cpb-status.service",
        "cpb-status.timer",
    ]
    assert "-m flows.deploy.server --port 4321\n" in parts["cpb-server.service"]
    assert "-m flows.deploy.worker --port 4321 --workers 3\n" in parts["cpb-worker.service"]
    assert f"WorkingDirectory={ROOT}\n" in parts["cpb-worker.service"]
    assert "100%%" in parts["cpb-server.service"]


def test_the_check_tells_people_what_is_wrong(parts):
    assert re.search(
        r"^ExecStart=.* -m flows\.cli deploy status --notify$", parts["cpb-status.service"], re.MULTILINE
    )
    assert "deploy status --notify 2>&1" in parts["cpb-status.timer"].splitlines()[-1]  # cron's


def test_systemd_understands_them(parts, tmp_path):
    if not shutil.which("systemd-analyze"):
        pytest.skip("no systemd on this machine")
    for name, text in parts.items():
        (tmp_path / name).write_text(text.split("\n# cron")[0])
    done = subprocess.run(
        ["systemd-analyze", "verify", "--user", *(str(tmp_path / name) for name in parts)],
        env={"PATH": "/usr/bin:/bin", "XDG_RUNTIME_DIR": str(tmp_path)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    complaints = [line for line in done.stderr.splitlines() if "cpb-" in line]
    assert complaints == []


def test_the_cron_lines_are_shell_commands(parts):
    lines = parts["cpb-status.timer"].splitlines()
    reboot, check = (line.removeprefix("# ") for line in lines[-2:])
    assert reboot.startswith("@reboot cd ")
    assert reboot.endswith(" -m flows.cli deploy up")
    command = (
        check.removeprefix("*/15 * * * * ").replace(r"\%", "%").replace("deploy status --notify", "--version")
    )
    done = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, timeout=60, check=False, cwd=Path("/")
    )
    assert (done.returncode, done.stdout) == (0, "")
    done = subprocess.run(
        ["sh", "-c", command.replace("--version", "nonsense")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=Path("/"),
    )
    assert "nonsense" in done.stdout  # what is wrong is mailed by cron
