"""Whatever is asked, the answer is what `/openapi.json` promises, and never a fault of the service."""

import subprocess
import sys

import pytest

from tests.tools.page_service import serve
from webapp.app import create_app


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_schemathesis_finds_nothing(mixed, monkeypatch, tmp_path):
    monkeypatch.chdir(mixed)
    with serve(create_app(mixed / "data")) as port:
        url = f"http://127.0.0.1:{port}/openapi.json"
        command = [
            sys.executable,
            "-m",
            "schemathesis.cli",
            "run",
            url,
            "--max-examples",
            "30",
            "--no-color",
        ]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=840, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
