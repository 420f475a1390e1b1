"""Databases and servers that cannot be used: one sentence within seconds, and no password in it."""

import contextlib
import http.server
import socket
import sqlite3
import subprocess
import sys
import threading

import pytest

from schemas.errors import CpbError
from tasks.tracking import experiment
from tasks.tracking.experiment import store_at
from tasks.tracking.store_errors import store_errors
from tests.tools.mlflow_engines import close_connections
from tests.tools.ports import free_port
from tests.tools.postgres_tools import needs_driver, uri


@pytest.fixture
def impatient(monkeypatch):
    """The same with a shorter limit, so that a test need not wait for the real one; libpq knows none below 2 s."""
    monkeypatch.setattr(experiment, "TIMEOUT_S", 2)


def refused(store_uri, reason):
    """Open a store that cannot be used; checks the sentence."""
    experiment._opened.clear()
    with pytest.raises(CpbError) as caught:
        store_at(store_uri)
    text = str(caught.value)
    assert (caught.value.code, caught.value.field) == ("store", "MLFLOW_TRACKING_URI")
    assert text.startswith("the MLflow store ")
    assert reason in text
    assert "\n" not in text
    assert "hunter2" not in text
    return text


def test_a_database_that_another_process_has_locked(store, impatient):
    path = store.uri.removeprefix("sqlite:///")
    close_connections(store.uri)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")
    hold = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None)"
    hold += "; c.execute('BEGIN EXCLUSIVE'); print('held', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", hold, path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        refused(store.uri, "database is locked")
        holder.stdin.close()
    store_at(store.uri)


def test_a_file_that_is_no_database(tmp_path):
    (tmp_path / "mlflow.db").write_bytes(b"this is not a database" * 100)
    refused(f"sqlite:///{tmp_path}/mlflow.db", "file is not a database")


@pytest.fixture
def silent():
    """The port of a socket that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def server():
    """An HTTP server that answers every request with the status that the test asks for, and notes who asks."""
    answers = {"status": 200, "seen": []}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            answers["seen"].append(self.headers.get("Authorization"))
            self.send_response(answers["status"])
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listener:
        answers["uri"] = f"http://me:hunter2@127.0.0.1:{listener.server_address[1]}"
        threading.Thread(target=listener.serve_forever, daemon=True).start()
        yield answers
        listener.shutdown()


def test_a_tracking_server_that_is_not_there_or_does_not_answer(silent, impatient):
    closed = free_port()
    assert f"http://127.0.0.1:{closed} " in refused(f"http://me:hunter2@127.0.0.1:{closed}", "refused")
    refused(f"http://me:hunter2@127.0.0.1:{silent}", "timed out")


@pytest.mark.parametrize("status", [401, 503])
def test_a_tracking_server_that_refuses_is_asked_once_with_the_password(server, status):
    server["status"] = status
    refused(server["uri"], str(status))
    (authorization,) = server["seen"]
    assert authorization.startswith("Basic ")


@pytest.mark.parametrize(
    "store_uri", ["postgresql://me:hunter2@x@127.0.0.1:1/runs", "postgresql://me:x@127.0.0.1:hunter2/runs"]
)
def test_a_password_that_is_not_percent_encoded_is_told_how(store_uri):
    text = refused(store_uri, "write @, : and / as %40")
    assert "127.0.0.1" not in text


@pytest.mark.parametrize("uri", ["bob:hunter2@host/db", "/tmp/mlruns"])
def test_what_is_no_url_is_told_how_and_not_shown(uri):
    with pytest.raises(
        CpbError, match=r"MLFLOW_TRACKING_URI cannot be used: it is no URL, as in sqlite:///"
    ) as caught:
        store_at(uri)
    assert uri not in str(caught.value)


def test_an_error_of_a_later_call_is_the_drivers_first_line(store):
    with pytest.raises(CpbError) as caught, store_errors(store.uri):
        store.client.get_run("0" * 32)
    assert (
        str(caught.value) == f"the MLflow store {store.uri} cannot be used: Run with id={'0' * 32} not found"
    )
    with pytest.raises(ZeroDivisionError), store_errors(store.uri):
        raise ZeroDivisionError


# -- Postgres ---------------------------------------------------------------------------------------------------------


@needs_driver
def test_a_postgres_that_is_not_there_or_does_not_answer(silent, impatient):
    refused(uri(free_port()), "Connection refused")
    refused(uri(silent), "timeout expired")
