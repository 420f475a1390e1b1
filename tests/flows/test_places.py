"""A place that cannot be used is one sentence before the first request, not after hours of training."""

import http.server
import json
import threading

import pytest

from tasks.tracking.store import open_store

TRAIN = ("train-all", "--coins", "BTC", "--timeframes", "1h", "--preset", "smoke")


@pytest.fixture
def mirror():
    """The URL of an HTTP server, and the paths that it was asked for; it has nothing."""
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_error(404)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
        server.shutdown()


@pytest.fixture
def end_of(tmp_path, monkeypatch, cpb_here):
    """Run a command in a folder of its own; returns what `--json` printed and the text of stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CPB_HOME", str(tmp_path / "home"))
    for name in (
        "MLFLOW_TRACKING_URI",
        "CPB_NOTIFY",
        "CPB_HEARTBEAT_URL",
        "PREFECT_API_URL",
    ):
        monkeypatch.delenv(name, raising=False)

    def run(*words):
        code, out, err = cpb_here(*words, "--json")
        told = json.loads(out.splitlines()[-1])
        assert told["exit"] == code
        assert err == f"cpb: {told['error']}\n"
        return told

    return run


@pytest.mark.parametrize(
    "command", [TRAIN, ("train", "BTC", "1h"), ("forecast", "--coins", "BTC"), ("ingest",)]
)
@pytest.mark.parametrize("kind", ["missing", "file"])
def test_a_source_that_is_no_folder(command, kind, end_of, tmp_path):
    source = tmp_path / "source"
    if kind == "file":
        source.touch()
    told = end_of(*command, "--source", str(source))
    assert (told["exit"], told["code"], told["field"]) == (2, "source", "source")
    assert not (tmp_path / "mlruns").exists()
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    ("uri", "code"),
    [
        ("sqlite:///file/mlflow.db", "store"),
        ("sqlite:////proc/none/mlflow.db", "store"),
        ("sqlite:///folder", "store"),
        ("sqlite:///text", "store"),
        ("nonsense://place", "store"),
        ("file:folder", "store"),
        ("http://127.0.0.1:1", "store"),
    ],
)
@pytest.mark.parametrize("command", [TRAIN, ("train", "BTC", "1h")])
def test_a_store_of_mlflow_that_is_impossible(command, uri, code, end_of, tmp_path, mirror, monkeypatch):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "text").write_text("no database\n" * 100)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    told = end_of(*command, "--source", mirror[0])
    assert (told["exit"], told["code"]) == (1, code)
    assert mirror[1] == []


def test_a_postgres_whose_port_is_no_number(end_of, mirror, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql://user:hunter2@host:hunter3/mlflow")
    told = end_of(*TRAIN, "--source", mirror[0])
    assert (told["exit"], told["code"], told["field"]) == (1, "store", "MLFLOW_TRACKING_URI")
    assert "hunter" not in told["error"]
    assert mirror[1] == []


def test_artifacts_that_cannot_be_written(end_of, tmp_path, mirror):
    open_store()
    (tmp_path / "home/mlruns/artifacts").rmdir()
    (tmp_path / "home/mlruns/artifacts").touch()
    told = end_of(*TRAIN, "--source", mirror[0])
    assert (told["exit"], told["code"], told["field"]) == (
        1,
        "artifacts",
        str(tmp_path / "home/mlruns/artifacts"),
    )
    assert mirror[1] == []


@pytest.mark.parametrize("kind", ["file", "folder of others"])
def test_something_foreign_where_the_published_tree_is_to_be(kind, end_of, tmp_path, mirror):
    hub = tmp_path / "home/hub"
    hub.parent.mkdir()
    if kind == "file":
        hub.touch()
    else:
        hub.mkdir()
        (hub / "mine.txt").write_text("mine")
    told = end_of(*TRAIN, "--source", mirror[0])
    assert (told["exit"], told["code"], told["field"]) == (1, "foreign-folder", str(hub))
    assert mirror[1] == []
    assert not (tmp_path / "mlruns").exists()


def test_a_home_that_is_a_file_is_said_once(end_of, tmp_path):
    (tmp_path / "home").touch()
    told = end_of(*TRAIN, "--source", "sim")  # `end_of` allows nothing else on stderr
    assert told["exit"] == 1
    assert str(tmp_path / "home") in told["error"]
