"""Whatever place a client names, MLflow's server reads, lists, writes and deletes only below the store's root."""

import inspect
import os
import shutil
import subprocess
import sys
import uuid
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import mlflow_routes
import pytest

from tasks.storage.urls import local_path
from tasks.tracking.artifact_guard import served_app

ROOT = Path(__file__).parents[2]
SECRET = "the owner's alone"
API, AJAX = "/api/2.0/mlflow", "/ajax-api/2.0/mlflow"
PROXY = "/api/2.0/mlflow-artifacts/artifacts"


@pytest.fixture
def server(schema, tmp_path, monkeypatch):
    """MLflow's app as cpb serves it, over a store whose artifacts lie in `root`; a secret lies beside it."""
    from mlflow.server import handlers
    from mlflow.store.artifact import artifact_repository_registry as repositories
    from mlflow.tracking._model_registry import utils as models
    from mlflow.tracking._tracking_service import utils as runs
    from starlette.testclient import TestClient

    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (outside / "secret.txt").write_text(SECRET)
    (root / "link").symlink_to(outside)
    database = tmp_path / "mlflow.db"
    shutil.copyfile(schema, database)
    monkeypatch.chdir(tmp_path)
    for module, name in (
        (handlers, "_tracking_store"), (handlers, "_model_registry_store"), (handlers, "_artifact_repo"),
        (runs, "_tracking_uri"), (models, "_registry_uri"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, None)
    own = repositories._artifact_repository_registry
    monkeypatch.setattr(repositories, "_artifact_repository_registry", own)  # to come back to
    with mock.patch.dict(os.environ):
        app = served_app(f"sqlite:///{database}", str(root))
        client = TestClient(app, base_url="http://127.0.0.1:5000", raise_server_exceptions=False,
                            client=("127.0.0.1", 50000))  # fmt: skip
        yield SimpleNamespace(app=app, ask=client.request, root=root, outside=outside)


NEW_PROCESS = """
import sys
from starlette.testclient import TestClient
from tasks.tracking.artifact_guard import served_app
client = TestClient(served_app(f"sqlite:///{sys.argv[1]}", sys.argv[2]), base_url="http://head.example:5000")
print(client.post("/api/2.0/mlflow/experiments/search", json={"max_results": 1}).status_code)
"""


def test_mlflows_own_check_of_hosts_is_off(schema, tmp_path):
    """It is decided when `mlflow.server` is imported, hence a process that has not imported it."""
    shutil.copyfile(schema, tmp_path / "mlflow.db")
    done = subprocess.run(
        [sys.executable, "-c", NEW_PROCESS, tmp_path / "mlflow.db", tmp_path / "root"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1:] == ["200"], done.stderr


def post(server, path, /, **body):
    return server.ask("POST", path, json=body)


def make_experiment(server, location, prefix=API):
    answer = post(server, f"{prefix}/experiments/create", name=uuid.uuid4().hex, artifact_location=location)
    assert answer.status_code == 200, answer.text
    return answer.json()["experiment_id"]


def make_run(server, location, prefix=API):
    experiment = make_experiment(server, location, prefix)
    answer = post(server, f"{prefix}/runs/create", experiment_id=experiment)
    return answer.json()["run"]["info"]


def plant(uri):
    """Put the secret where MLflow would look for an artifact of this place."""
    folder = local_path(uri)
    folder.mkdir(parents=True)
    (folder / "secret.txt").write_text(SECRET)
    return folder


PLACES = {
    "uri": lambda s: s.outside.as_uri(),
    "path": lambda s: str(s.outside),
    "host": lambda s: f"file://localhost{s.outside}",
    "slashes": lambda s: f"file:////{s.outside}",
    "dots": lambda s: f"{s.root}/../outside",
    "encoded dots": lambda s: f"{s.root.as_uri()}/%2e%2e/outside",
    "link": lambda s: (s.root / "link").as_uri(),
    "the folder above": lambda s: s.root.parent.as_uri(),
    "a name that begins alike": lambda s: f"{s.root.as_uri()}-other",
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("prefix", [API, AJAX])
def test_an_experiments_place_outside_the_root_is_not_opened(server, place, prefix):
    info = make_run(server, PLACES[place](server), prefix)
    run = info["run_id"]
    folder = plant(info["artifact_uri"])
    model = post(server, f"{prefix}/logged-models", experiment_id=info["experiment_id"], name="m").json()
    model = model["model"]["info"]
    plant(model["artifact_uri"])

    upload = server.ask("POST", f"{AJAX}/upload-artifact?run_uuid={run}&path=new.txt", content=b"x")
    asked = {
        "read": server.ask("GET", f"/get-artifact?run_id={run}&path=secret.txt"),
        "read by its old name": server.ask("GET", f"/get-artifact?run_uuid={run}&path=secret.txt"),
        "list": server.ask("GET", f"{prefix}/artifacts/list?run_id={run}"),
        "write": upload,
        "presign": post(server, f"{prefix}/artifacts/presigned-download-url", run_id=run, path="secret.txt"),
        "presign to write": post(
            server, f"{prefix}/artifacts/presigned-upload-url", run_id=run, path="new.txt"
        ),
        "model": server.ask(
            "GET", f"{AJAX}/logged-models/{model['model_id']}/artifacts/files?artifact_file_path=secret.txt"
        ),
        "model's list": server.ask(
            "GET", f"{prefix}/logged-models/{model['model_id']}/artifacts/directories"
        ),
    }

    assert {name: answer.status_code for name, answer in asked.items()} == dict.fromkeys(asked, 403)
    for answer in asked.values():
        assert SECRET not in answer.text
        assert str(server.outside) not in answer.text
        assert "keep the files there" in answer.json()["message"]
    assert sorted(file.name for file in folder.iterdir()) == ["secret.txt"]


def test_graphql_lists_nothing_outside_the_root(server):
    info = make_run(server, server.outside.as_uri())
    plant(info["artifact_uri"])
    query = f'{{ mlflowListArtifacts(input: {{runId: "{info["run_id"]}"}}) {{ files {{ path }} }} }}'

    answer = post(server, "/graphql", query=query)

    assert "secret.txt" not in answer.text
    assert answer.json()["data"] == {"mlflowListArtifacts": None}
    assert "keep the files there" in answer.json()["errors"][0]


@pytest.mark.parametrize("below", ["", "/model"])
def test_a_versions_source_outside_the_root_is_not_opened(server, below):
    info = make_run(server, server.outside.as_uri())
    source = f"{info['artifact_uri']}{below}"
    plant(source)
    post(server, f"{API}/registered-models/create", name="m")
    made = post(server, f"{API}/model-versions/create", name="m", source=source, run_id=info["run_id"])
    assert made.status_code == 200, made.text

    answer = server.ask("GET", "/model-versions/get-artifact?name=m&version=1&path=secret.txt")

    assert answer.status_code == 403
    assert SECRET not in answer.text


def test_a_versions_source_by_its_run_is_judged_by_the_runs_place(server):
    post(server, f"{API}/registered-models/create", name="m")
    statuses = []
    for version, place in enumerate((server.root / "files", server.outside), 1):
        info = make_run(server, place.as_uri())
        plant(info["artifact_uri"])
        post(server, f"{API}/model-versions/create", name="m", source=f"runs:/{info['run_id']}/",
             run_id=info["run_id"])  # fmt: skip
        asked = f"/model-versions/get-artifact?name=m&version={version}&path=secret.txt"
        statuses.append(server.ask("GET", asked).status_code)

    assert statuses == [200, 403]


@pytest.mark.parametrize("place", ["{outside}", "mlflow-artifacts:/../outside", "mlflow-artifacts:/link"])
def test_a_traces_place_outside_the_root_is_not_opened(server, place):
    experiment = make_experiment(server, server.root.as_uri())
    trace, attachment = f"tr-{uuid.uuid4().hex}", str(uuid.uuid4())
    (server.outside / "traces.json").write_text(f'{{"spans": "{SECRET}"}}')
    (server.outside / "attachments").mkdir()
    (server.outside / "attachments" / attachment).write_text(SECRET)
    info = {"trace_id": trace, "request_time": "2026-01-01T00:00:00Z", "state": "OK", "tags": {},
            "trace_location": {"type": "MLFLOW_EXPERIMENT",
                               "mlflow_experiment": {"experiment_id": experiment}}}  # fmt: skip
    made = post(server, "/api/3.0/mlflow/traces", trace={"trace_info": info})
    assert made.status_code == 200, made.text
    tag = {"key": "mlflow.artifactLocation", "value": place.format(outside=server.outside.as_uri())}
    assert server.ask("PATCH", f"/api/3.0/mlflow/traces/{trace}/tags", json=tag).status_code == 200

    for ask in ("", f"&path={attachment}"):
        answer = server.ask("GET", f"/ajax-api/3.0/mlflow/get-trace-artifact?request_id={trace}{ask}")
        assert answer.status_code == 403, answer.text
        assert SECRET not in answer.text


@pytest.mark.parametrize("prefix", [PROXY, PROXY.replace("/api", "/ajax-api")])
def test_the_proxy_follows_no_link_out_of_the_root(server, prefix):
    assert server.ask("GET", f"{prefix}/link/secret.txt").status_code == 403
    assert server.ask("PUT", f"{prefix}/link/new.txt", content=b"x").status_code == 403
    assert server.ask("DELETE", f"{prefix}/link/secret.txt").status_code == 403
    assert server.ask("DELETE", f"{prefix}/link").status_code == 403
    assert server.ask("GET", f"{prefix}?path=link").status_code == 403
    assert server.ask("GET", prefix).json().get("files", []) == []  # nor says what the link leads to
    assert [file.name for file in server.outside.iterdir()] == ["secret.txt"]


@pytest.mark.parametrize("target", ["outside/secret.txt", "outside/none.txt"])
def test_a_file_is_not_written_through_a_link_of_its_name(server, target):
    (server.root / "report.txt").symlink_to(server.root.parent / target)

    assert server.ask("PUT", f"{PROXY}/report.txt", content=b"new").status_code == 403

    assert (server.outside / "secret.txt").read_text() == SECRET
    assert not (server.outside / "none.txt").exists()


UPWARDS = ["../outside/secret.txt", "%2e%2e/outside/secret.txt", "%252e%252e%252foutside/secret.txt",
           "a/..%2f..%2foutside/secret.txt", "..%5coutside/secret.txt", "%2f{outside}/secret.txt",
           "file:{outside}/secret.txt", "file:%2f%2f{outside}/secret.txt", "link%2fsecret.txt",
           "link%252fsecret.txt"]  # fmt: skip


@pytest.mark.parametrize("path", UPWARDS)
def test_no_path_leads_out_of_the_root(server, path):
    info = make_run(server, server.root.as_uri())
    folder = local_path(info["artifact_uri"])
    folder.mkdir(parents=True)
    (folder / "link").symlink_to(server.outside)
    path = path.format(outside=server.outside)

    for method, url in (
        ("GET", f"{PROXY}/{path}"),
        ("PUT", f"{PROXY}/{path}"),
        ("DELETE", f"{PROXY}/{path}"),
        ("GET", f"/get-artifact?run_id={info['run_id']}&path={path}"),
        ("GET", f"{API}/artifacts/list?run_id={info['run_id']}&path={path}"),
        ("POST", f"{AJAX}/upload-artifact?run_uuid={info['run_id']}&path={path}"),
    ):
        answer = server.ask(method, url, content=b"x" if method in ("PUT", "POST") else None)
        # whatever the status: MLflow's own look at the text of a path comes first, or a path of the root is meant
        assert SECRET not in answer.text, (method, url)
        assert 'secret.txt"' not in answer.text, (method, url)
    assert (server.outside / "secret.txt").read_text() == SECRET
    assert [file.name for file in server.outside.iterdir()] == ["secret.txt"]


ELSEWHERE = ["http://127.0.0.1:9/x", "https://example.org/x", "ftp://127.0.0.1/x", "sftp://127.0.0.1/x", "s3://bucket/x",
             "gs://bucket/x", "wasbs://c@a.blob.core.windows.net/x", "abfss://c@a.dfs.core.windows.net/x", "r2://b@a/x",
             "b2://b@a/x", "hdfs://127.0.0.1/x", "viewfs://127.0.0.1/x", "dbfs:/x", "dbfs:/Volumes/a/b/c",
             "mlflow-artifacts:/x", "mlflow-artifacts://127.0.0.1:9/x", "runs://profile@databricks/r/x",
             "models://profile@databricks/m/1", "sqlite:///x", "nowhere:/x", "FILE:///etc", "c:/etc"]  # fmt: skip


@pytest.mark.parametrize("uri", ELSEWHERE)
def test_no_repository_of_another_place_is_made(server, uri):
    from mlflow.exceptions import MlflowException
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    with pytest.raises(MlflowException) as caught:
        get_artifact_repository(uri)

    assert caught.value.get_http_status_code() == 403


@pytest.mark.parametrize("place", ["models:/m/1", "models:/m", "models:/m@champion"])
def test_a_models_address_as_an_artifact_location_is_refused(server, place):
    run = make_run(server, place)["run_id"]
    for method, url in (
        ("GET", f"/get-artifact?run_id={run}&path=x"),
        ("GET", f"{API}/artifacts/list?run_id={run}"),
        ("POST", f"{AJAX}/upload-artifact?run_uuid={run}&path=x"),
    ):
        assert server.ask(method, url, content=b"x" if method == "POST" else None).status_code == 403, url


def test_a_store_of_objects_opens_what_lies_below_its_root_alone(server):
    from mlflow.exceptions import MlflowException
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    from tasks.tracking.artifact_guard import install

    install("s3://bucket/cpb/")
    for uri in ("s3://bucket/cpb", "s3://bucket/cpb/1/run/artifacts"):
        assert get_artifact_repository(uri).artifact_uri == uri
    for uri in ("s3://bucket/cpb-other", "s3://bucket", "s3://bucket/cpb/../x", "s3://bucket/cpb/%2e%2e/x",
                "s3://other/cpb", server.root.as_uri(), "/etc", ""):  # fmt: skip
        with pytest.raises(MlflowException, match="below its own artifact root"):
            get_artifact_repository(uri)


def confined(server, place):
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    return get_artifact_repository(str(place))


def test_a_repositorys_methods_follow_no_link_out_of_the_root(server, tmp_path):
    from mlflow.exceptions import MlflowException

    place = server.root / "run"
    place.mkdir()
    (place / "sub").symlink_to(server.outside)
    (place / "traces.json").symlink_to(server.outside / "secret.txt")
    (place / "kept.txt").write_text("kept")
    repository, sent = confined(server, place), tmp_path / "sent"
    (sent / "sub").mkdir(parents=True)
    (sent / "sub" / "new.txt").write_text("x")

    for call in (
        lambda: repository.get_local_path("sub/secret.txt"),
        lambda: repository.download_artifacts("sub/secret.txt", str(tmp_path)),
        lambda: repository.download_artifacts("sub", str(tmp_path)),
        lambda: repository.list_artifacts("sub"),
        lambda: repository.log_artifact(sent / "sub" / "new.txt", "sub"),
        lambda: repository.log_artifacts(str(sent)),
        lambda: repository.delete_artifacts("sub/secret.txt"),
        lambda: repository.delete_artifacts("../../outside"),
        lambda: repository.download_trace_data(),
        lambda: repository.download_trace_data_to_file(tmp_path / "taken"),
    ):
        with pytest.raises(MlflowException):
            call()
    assert not (tmp_path / "taken").exists()
    assert [info.path for info in repository.list_artifacts()] == ["kept.txt"]
    assert [file.name for file in server.outside.iterdir()] == ["secret.txt"]


def test_a_place_that_looks_encoded_once_more_is_the_folder_of_that_name(server):
    place = server.root / "%2e%2e" / "%2e%2e" / "outside"  # an address that was encoded twice
    place.mkdir(parents=True)
    for name in ("secret.txt", "other.txt"):
        (place / name).write_text("x")
    repository = confined(server, server.root.as_uri() + "/%252e%252e/%252e%252e/outside")

    repository.delete_artifacts("secret.txt")
    assert [file.name for file in place.iterdir()] == ["other.txt"]
    repository.delete_artifacts()
    assert not place.exists()
    assert (server.outside / "secret.txt").exists()


def test_a_folder_of_files_is_written_below_the_root(server, tmp_path):
    (tmp_path / "sent" / "sub").mkdir(parents=True)
    (tmp_path / "sent" / "a.txt").write_text("a")
    (tmp_path / "sent" / "sub" / "b.txt").write_text("b")

    confined(server, server.root / "run").log_artifacts(str(tmp_path / "sent"), "model")

    kept = server.root / "run" / "model"
    assert ((kept / "a.txt").read_text(), (kept / "sub" / "b.txt").read_text()) == ("a", "b")


def test_what_lies_below_the_root_is_served_as_before(server):
    shutil.rmtree(server.root)
    moved = server.root.with_name("another disk")  # the root itself may be a link
    moved.mkdir()
    server.root.symlink_to(moved)
    info = make_run(server, server.root.as_uri())
    run = info["run_id"]

    upload = server.ask(
        "POST", f"{AJAX}/upload-artifact?run_uuid={run}&path=figures/forecast.png", content=b"png"
    )
    assert upload.status_code == 200, upload.text
    assert server.ask("GET", f"/get-artifact?run_id={run}&path=figures/forecast.png").content == b"png"
    listed = server.ask("GET", f"{API}/artifacts/list?run_id={run}&path=figures").json()["files"]
    assert [file["path"] for file in listed] == ["figures/forecast.png"]
    post(server, f"{API}/registered-models/create", name="m")
    post(
        server, f"{API}/model-versions/create", name="m", source=f"{info['artifact_uri']}/figures", run_id=run
    )
    assert (
        server.ask("GET", "/model-versions/get-artifact?name=m&version=1&path=forecast.png").content == b"png"
    )

    proxied = make_run(server, "mlflow-artifacts:/cpb")["run_id"]
    assert server.ask("PUT", f"{PROXY}/cpb/{proxied}/artifacts/a b/é.txt", content=b"1").status_code == 200
    assert server.ask("GET", f"/get-artifact?run_id={proxied}&path=a b/é.txt").content == b"1"
    assert (
        server.ask("GET", f"{PROXY}?path=cpb/{proxied}/artifacts/a b").json()["files"][0]["path"] == "é.txt"
    )
    assert server.ask("GET", f"/get-artifact?run_id={proxied}&path=missing.txt").status_code == 404
    assert server.ask("DELETE", f"{PROXY}/cpb/{proxied}/artifacts/a b/é.txt").status_code == 200
    assert not list((moved / "cpb" / proxied / "artifacts" / "a b").iterdir())


def test_the_server_calls_nobody_and_runs_nothing_for_a_client(server, tmp_path):
    hook = {"name": "h", "url": "https://example.org", "events": [{"entity": "RUN", "action": "CREATED"}]}
    assert post(server, f"{API}/webhooks", **hook).status_code == 403
    assert server.ask("PATCH", f"{AJAX}/webhooks/1", json=hook).status_code == 403
    assert post(server, f"{API}/webhooks/1/test").status_code == 403
    skills = {"type": "custom", "custom_path": str(tmp_path / "skills"), "provider": "claude_code"}
    assistant = "/ajax-api/3.0/mlflow/assistant"
    assert post(server, f"{assistant}/skills/install", **skills).status_code == 404
    assert server.ask("GET", f"{assistant}/config").status_code == 404
    assert server.ask("GET", f"{assistant}/sessions/a%0ab/stream").status_code == 404
    assert not (tmp_path / "skills").exists()
    assert post(server, "/gateway/mlflow/v1/chat/completions", model="m").status_code == 501
    assert post(server, "/api/3.0/mlflow/gateway/secrets/create", secret_name="s").status_code == 501
    job = post(server, "/ajax-api/3.0/jobs/", job_name="invoke_scorer", params={})
    assert "job execution feature is not enabled" in job.json()["detail"]
    assert post(server, "/api/3.0/mlflow/workspaces", name="w").status_code == 503


def test_every_route_of_the_installed_mlflow_is_judged(server):
    found, known = mlflow_routes.installed(server.app), mlflow_routes.judged()
    assert found - known == set(), "new routes: see mlflow_routes.py"
    assert known - found == set(), "routes that MLflow no longer has"
    assert mlflow_routes.place_fields() == set(mlflow_routes.PLACES.split())


def test_the_routes_that_open_artifacts_ask_the_guarded_registry_alone(server):
    """No module of MLflow's server makes a repository of its own, past the registry."""
    import mlflow

    package = Path(mlflow.__file__).parent
    folders = [package / name for name in ("server", "store/tracking", "store/model_registry")]
    files = [
        *(file for folder in folders for file in folder.rglob("*.py")),
        package / "utils/promptlab_utils.py",
    ]
    made = {file.name for file in files if "ArtifactRepository(" in file.read_text(encoding="utf-8")}
    assert made == set()


def test_every_method_of_mlflows_repository_is_judged(server):
    from mlflow.store.artifact.artifact_repo import ArtifactRepository

    from tasks.tracking.artifact_guard import Confined

    writing = """_log_artifact_async upload_trace_data upload_archived_trace_data upload_archived_trace_data_bytes
        upload_attachment"""
    reading = """_is_directory download_artifacts _iter_artifacts_recursive _create_download_destination
        download_trace_data download_trace_data_to_file download_archived_trace_data download_trace_attachment
        download_trace_attachment_to_file"""
    without_path = "__init__ __repr__ max_workers _create_thread_pool flush_async_logging"
    by_the_others = {*writing.split(), *reading.split(), *without_path.split()}
    assert Confined.__mro__ == (Confined, ArtifactRepository, object)
    methods = {name for name, value in vars(ArtifactRepository).items()
               if inspect.isfunction(value) or isinstance(value, property)}  # fmt: skip
    own = set(vars(Confined)) - {"__init__"}
    assert methods - own == by_the_others
    assert methods >= own - {"_real"} - {name for name in own if name.startswith("__")}
