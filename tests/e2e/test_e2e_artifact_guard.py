"""A real `cpb tracking-server`: whoever knows its password still reads and writes below its artifact root alone."""

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from ports import free_port

ROOT = Path(__file__).resolve().parents[2]
SECRET = "the owner's alone"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@contextmanager
def tracking_server(folder):
    """Serve a new store from this folder; yields its address, user and password."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("CPB_", "MLFLOW_", "_MLFLOW"))}
    env |= {"PYTHONPATH": str(ROOT), "XDG_CONFIG_HOME": str(folder / "config"),
            "MLFLOW_BACKEND_STORE_URI": f"sqlite:///{folder}/mlflow.db"}  # fmt: skip
    command = [sys.executable, "-m", "flows.cli", "tracking-server", "--port", str(free_port()), "--json"]
    server = subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, text=True)
    try:
        answer = json.loads(server.stdout.readline())
        user, _, password = Path(answer["auth_file"]).read_text().strip().partition(":")
        yield answer["url"], user, password
    finally:
        server.terminate()
        server.communicate(timeout=60)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    with tracking_server(folder) as (url, user, password):
        yield folder, url, user, password


def test_an_attacker_with_the_password_reaches_nothing_outside_the_root(served):
    folder, url, user, password = served
    outside, root = folder / "outside", folder / "mlartifacts"
    outside.mkdir()
    root.mkdir(exist_ok=True)
    (outside / "secret.txt").write_text(SECRET)
    (root / "link").symlink_to(outside)
    api = f"{url}/api/2.0/mlflow"
    with httpx.Client(auth=(user, password), timeout=60) as client:
        made = client.post(
            f"{api}/experiments/create", json={"name": "x", "artifact_location": outside.as_uri()}
        )
        run = client.post(f"{api}/runs/create", json=made.json()).json()["run"]["info"]
        files = Path(run["artifact_uri"].removeprefix("file://"))
        files.parent.mkdir()
        files.symlink_to(outside)  # as somebody does who may write to the folder that was named
        run_id = run["run_id"]
        proxy = f"{url}/api/2.0/mlflow-artifacts/artifacts"
        answers = {
            "read": client.get(f"{url}/get-artifact?run_id={run_id}&path=secret.txt"),
            "list": client.get(f"{api}/artifacts/list?run_id={run_id}"),
            "write": client.post(
                f"{url}/ajax-api/2.0/mlflow/upload-artifact?run_uuid={run_id}&path=new.txt", content=b"x"
            ),
            "read by a link": client.get(f"{proxy}/link/secret.txt"),
            "write by a link": client.put(f"{proxy}/link/new.txt", content=b"x"),
            "delete by a link": client.delete(f"{proxy}/link/secret.txt"),
        }
        assert {name: answer.status_code for name, answer in answers.items()} == dict.fromkeys(answers, 403)
        assert not [name for name, answer in answers.items() if SECRET in answer.text]
        assistant = f"{url}/ajax-api/3.0/mlflow/assistant/skills/install"
        skills = {"type": "custom", "custom_path": str(folder / "skills"), "provider": "claude_code"}
        assert client.post(assistant, json=skills).status_code == 404
    assert not (folder / "skills").exists()
    assert (outside / "secret.txt").read_text() == SECRET
    assert not (outside / "new.txt").exists()


def test_a_client_logs_lists_and_downloads_as_before(served, tmp_path, monkeypatch):
    from mlflow.artifacts import download_artifacts
    from mlflow.tracking import MlflowClient

    _, url, user, password = served
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", user)
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", password)
    sent, got = tmp_path / "sent", tmp_path / "got"
    (sent / "model").mkdir(parents=True)
    got.mkdir()
    (sent / "forecast.png").write_bytes(b"png")
    (sent / "model" / "weights").write_bytes(b"0" * 3_000_000)
    client = MlflowClient(tracking_uri=url, registry_uri=url)
    run = client.create_run(client.get_experiment_by_name("cpb").experiment_id)
    run_id = run.info.run_id
    client.log_artifact(run_id, str(sent / "forecast.png"), "figures")
    client.log_artifacts(run_id, str(sent / "model"), "model")

    assert [info.path for info in client.list_artifacts(run_id)] == ["figures", "model"]
    assert Path(client.download_artifacts(run_id, "figures/forecast.png", str(got))).read_bytes() == b"png"
    shown = httpx.get(f"{url}/get-artifact?run_id={run_id}&path=figures/forecast.png", auth=(user, password))
    assert (shown.status_code, shown.content) == (200, b"png")
    client.create_registered_model("m")
    client.create_model_version("m", f"{run.info.artifact_uri}/model", run_id)
    place = client.get_model_version_download_uri("m", "1")
    fetched = download_artifacts(artifact_uri=f"{place}/weights", dst_path=str(got), tracking_uri=url)
    assert Path(fetched).read_bytes() == b"0" * 3_000_000
