"""An attacker's script as a second user of the machine, against `cpb ui`: it gets, changes and finds nothing."""

import base64
import http.client
import json
import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from other_user import NOBODY, as_nobody, let_others_pass
from ports import free_port
from starting import environment, processes_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become another user"),
]


@pytest.fixture(scope="module")
def victim(tmp_path_factory):
    """A running `cpb ui`: what it printed, its folder, its process, and a private file beside the store."""
    from tasks.tracking.store import open_store

    folder = tmp_path_factory.mktemp("victim")
    (folder / "mlruns").mkdir()
    open_store(f"sqlite:///{folder}/mlruns/mlflow.db")
    private = folder / "private"
    private.mkdir(mode=0o700)
    (private / "key").write_text("the key")
    (private / "key").chmod(0o600)
    let_others_pass(folder)
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "flows.cli", "ui", "--port", str(port), "--json"], cwd=folder,
        env=environment(folder), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        told = json.loads(process.stdout.readline())
        yield told, folder, process
    finally:
        for left in processes_of(folder):
            left.kill()
        process.communicate()


def secrets_of(told):
    """The password, and what a request carries of it."""
    assert len(told["password"]) >= 32
    return [told["password"], base64.b64encode(f"{told['user']}:{told['password']}".encode()).decode()]


def ask(url, method, path, body=None, **headers):
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    content = json.dumps(body).encode() if body is not None else None
    connection.request(method, path, content, {"Content-Type": "application/json"} | headers)
    answer = connection.getresponse()
    return answer.status, answer.read().decode(errors="replace")


def test_nothing_is_read_or_written_without_the_password(victim):
    told, folder, _ = victim
    secret, target = folder / "private/key", folder / "private/new"
    place = {"name": "x", "artifact_location": (folder / "private").as_uri()}
    requests = [
        ("POST", "/api/2.0/mlflow/experiments/create", place),
        ("POST", "/ajax-api/2.0/mlflow/experiments/create", place),
        ("POST", "/api/2.0/mlflow/runs/create", {"experiment_id": "1"}),
        ("POST", "/api/2.0/mlflow/runs/search", {"experiment_ids": ["1"]}),
        ("POST", "/graphql", {"query": "{ __typename }"}),
        ("GET", "/get-artifact?run_uuid=x&path=key", None),
        ("GET", "/ajax-api/2.0/mlflow/get-artifact?run_uuid=x&path=key", None),
        ("GET", "/model-versions/get-artifact?name=x&version=1&path=key", None),
        ("POST", "/ajax-api/2.0/mlflow/upload-artifact?run_uuid=x&path=new", {}),
        ("PUT", "/api/2.0/mlflow-artifacts/artifacts/new", {}),
        ("GET", "/api/2.0/mlflow-artifacts/artifacts?path=..", None),
        ("GET", f"/static-files/../../../../../../../..{secret}", None),
        ("GET", "/", None),
        ("GET", "/version", None),
        ("GET", "//health/../version", None),
        ("GET", "/health/", None),
        ("GET", "/signup", None),
        ("GET", "/metrics", None),
        ("GET", "/openapi.json", None),
        ("GET", "/docs", None),
        ("POST", "/v1/traces", {}),
    ]
    guesses = [{}, {"Authorization": "Basic Y3BiOg=="}, {"Authorization": "Bearer cpb"},
               {"X-Forwarded-For": "127.0.0.1"}]  # fmt: skip
    answers = json.loads(
        as_nobody(
            lambda: json.dumps([
                (path, *ask(told["url"], method, path, body, **guess))
                for method, path, body in requests
                for guess in guesses
            ])
        )
    )  # fmt: skip
    assert len(answers) == len(requests) * len(guesses)
    assert {status for _, status, _ in answers} == {401}
    assert not any("the key" in body for *_, body in answers)
    assert not target.exists()


def test_no_password_is_found_in_processes_or_files(victim):
    told, folder, process = victim
    wanted = [secret.encode() for secret in secrets_of(told)]

    def search():
        assert os.getuid() == NOBODY
        seen, leaks, closed = 0, [], 0
        places = [path for pid in Path("/proc").glob("[0-9]*") for path in (pid / "cmdline", pid / "environ")]
        for place in [*places, *folder.rglob("*")]:
            try:
                if place.is_file():
                    content = place.read_bytes()
                    seen += 1
                    leaks += [str(place)] * any(secret in content for secret in wanted)
            except OSError:
                closed += 1
        return json.dumps([seen, leaks, closed])

    seen, leaks, closed = json.loads(as_nobody(search))
    assert seen > 3
    assert closed > 0
    assert leaks == []
    shown = subprocess.run(
        ["ps", "axwwe"], capture_output=True, check=True
    ).stdout  # root's: it sees environments
    assert b"flows.cli ui" in shown
    assert not any(secret in shown for secret in wanted)
    memory = as_nobody(lambda: os.open(f"/proc/{process.pid}/mem", os.O_RDONLY))
    assert "PermissionError" in memory


def test_the_owner_gets_in_with_the_password(victim):
    """What the others lack: the same requests work, so that the test above tests something."""
    told, _, _ = victim
    import httpx

    answer = httpx.get(
        f"{told['url']}/version", auth=(told["user"], told["password"]), trust_env=False, timeout=60
    )
    assert answer.status_code == 200
