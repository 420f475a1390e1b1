"""Databases and servers that are away: one sentence with a code, within ten seconds, and no password in it."""

import contextlib
import http.server
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
import threading
from pathlib import Path

import fork_server
import pytest
from engines import close_connections
from postgres_tools import needs_driver, place_artifacts, postgres, uri  # noqa: F401
from registering import register_champion
from test_registry import folder, series  # noqa: F401
from test_runs import fleet_of, log_member, member

from cpbmodels.errors import pip_install
from schemas.errors import CpbError
from tasks.tracking import database as database_module
from tasks.tracking import mlflow_store
from tasks.tracking.mlflow_store import open_store
from tasks.tracking.runs import finish, log_metrics, start_parent

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def impatient(monkeypatch):
    """The same with a shorter limit, so that a test need not wait for the real one."""
    monkeypatch.setattr(database_module, "TIMEOUT_S", 1)


def forget():
    mlflow_store._opened.clear()
    mlflow_store._opened_for_writing.clear()


def refused(uri, code, **options):
    """Open a store that cannot be used; checks the sentence."""
    with pytest.raises(CpbError) as caught:
        open_store(uri, **options)
    assert caught.value.code == code, str(caught.value)
    text = str(caught.value)
    assert "\n" not in text
    assert "hunter2" not in text
    assert "db upgrade" not in text
    assert caught.value.__cause__ is None or "hunter2" not in repr(caught.value.__cause__)
    return text


HOLD = """
import sqlite3, sys, time
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN EXCLUSIVE")
print("held", flush=True)
time.sleep(600)
"""


@contextlib.contextmanager
def held(database):
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(database)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "held\n"
        yield
    finally:
        holder.kill()
        holder.wait(120)


def test_a_database_that_another_process_has_locked(store, impatient):
    forget()
    with held(store.uri.removeprefix("sqlite:///")):
        refused(store.uri, "database-locked")
        open_store(store.uri, create=False)  # readers do not wait for writers
    open_store(store.uri)


def test_a_locked_database_without_a_wal_cannot_be_read_either(schema, tmp_path, impatient):
    path = tmp_path / "old.db"
    shutil.copyfile(schema, path)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")
    with held(path):
        refused(f"sqlite:///{path}", "database-locked", create=False)
    open_store(f"sqlite:///{path}", create=False)


def test_all_waits_for_a_locked_database_are_below_ten_seconds(store, monkeypatch):
    waits, connect = [], sqlite3.connect

    def connect_soon(*arguments, **options):
        waits.append(options.get("timeout", 5.0))
        return connect(*arguments, **(options | {"timeout": 0.1}))

    monkeypatch.setattr(sqlite3, "connect", connect_soon)
    monkeypatch.setattr(sqlite3.dbapi2, "connect", connect_soon)  # SQLAlchemy's
    forget()
    with held(store.uri.removeprefix("sqlite:///")):
        refused(store.uri, "database-locked")
    assert 0 < sum(waits) < 10


@pytest.fixture
def closed_port():
    from ports import free_port

    return free_port()


@pytest.fixture
def silent():
    """A socket that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        yield silent


def asked(silent):
    """How often a connection to the socket was opened."""
    silent.setblocking(False)
    times = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            silent.accept()[0].close()
            times += 1
    return times


@pytest.fixture
def server():
    """An HTTP server that answers every request with the status that the test asks for."""
    answers = {"status": 200, "seen": []}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            answers["seen"].append((self.path, self.headers.get("Authorization")))
            self.send_response(answers["status"])
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as one:
        answers["port"] = one.server_address[1]
        threading.Thread(target=one.serve_forever, daemon=True).start()
        yield answers
        one.shutdown()


def test_a_tracking_server_that_is_not_there(closed_port):
    text = refused(f"http://me:hunter2@127.0.0.1:{closed_port}", "database-down")
    assert f"http://127.0.0.1:{closed_port} " in text


def test_a_tracking_server_that_does_not_answer(silent, impatient):
    refused(f"http://127.0.0.1:{silent.getsockname()[1]}", "database-down")
    assert asked(silent) == 1


@pytest.mark.parametrize(
    ("status", "code"),
    [(401, "database-refused"), (403, "database-refused"), (500, "database-down"), (503, "database-down")],
)
def test_a_tracking_server_that_refuses(server, status, code):
    server["status"] = status
    refused(f"http://me:hunter2@127.0.0.1:{server['port']}", code)
    (request,) = server["seen"]  # asked once, with the credentials
    assert request[1].startswith("Basic ")


def test_an_unknown_host_of_a_tracking_server():
    assert "unknown host" in refused("http://me:hunter2@no-such-host.invalid:5000", "database-down")


def test_a_password_that_is_not_percent_encoded_is_told_how():
    text = refused("postgresql://me:hunter2@x@127.0.0.1:1/runs", "database-down")
    assert "%40" in text
    assert "hunter2@" not in text


def test_a_driver_is_named_by_what_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "MySQLdb", None)
    found = refused("mysql://me:hunter2@127.0.0.1:1/runs", "missing-package")
    assert f"run `{pip_install('mysqlclient')}`" in found


READ = """
import os, sys, tempfile
from schemas.errors import CpbError
from tasks.tracking.boards import leaderboard
from tasks.tracking.registry import champions
from tasks.tracking.mlflow_store import open_store
with tempfile.TemporaryDirectory() as other:  # imports all that MLflow needs: another user may not read Python's files
    open_store(f"sqlite:///{other}/mlflow.db")
if os.getuid() == 0:  # whom no mode keeps from writing
    os.setgid(65534), os.setuid(65534)
print([(c.model_version, c.damage) for c in champions()], [r["architecture"] for r in leaderboard()])
try:
    open_store()
except CpbError as error:
    print(error.code)
"""


@pytest.fixture
def foreign(schema, monkeypatch):
    """A store in a folder that other users may read."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        home = Path(name)
        home.chmod(0o755)
        monkeypatch.chdir(home)
        (home / "mlruns").mkdir()
        shutil.copyfile(schema, home / "mlruns/mlflow.db")
        yield home
        for path in home.rglob("*"):
            path.chmod(0o755)


@pytest.mark.parametrize("open_elsewhere", [False, True])
def test_a_store_that_may_only_be_read_is_read(foreign, folder, forking, open_elsewhere):  # noqa: F811
    store = open_store()
    fleet = fleet_of()
    register_champion(series(), log_member(fleet.run_id, member(folder)))
    finish(fleet.run_id)
    finish(store.client.get_run(fleet.run_id).data.tags["mlflow.parentRunId"])
    database, scratch = foreign / "mlruns/mlflow.db", foreign / "scratch"
    scratch.mkdir()
    with contextlib.ExitStack() as stack:
        if open_elsewhere:  # then the last changes lie in the WAL alone
            stack.enter_context(contextlib.closing(sqlite3.connect(database))).execute("SELECT 1 FROM runs")
        else:
            close_connections(store.uri)
        for path in sorted(foreign.rglob("*"), reverse=True):
            path.chmod(0o555 if path.is_dir() else 0o444)
        scratch.chmod(0o777)
        before = {path: path.stat().st_mtime_ns for path in (foreign / "mlruns").rglob("*")}
        program = [forking / fork_server.CODE] if open_elsewhere else [sys.executable, "-c"]
        done = subprocess.run(
            [*program, READ], cwd=foreign, capture_output=True, text=True, timeout=120, check=False,
            env={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], "HOME": "/nonexistent",
                 "TMPDIR": str(scratch)},
        )  # fmt: skip
    assert done.stdout.splitlines() == ["[('cpb-BTCUSDT-1h/1', '')] ['gru']", "read-only-store"], done.stderr
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert not list(scratch.iterdir())


# -- Postgres ---------------------------------------------------------------------------------------------------------


@needs_driver
def test_a_postgres_that_is_not_there(closed_port):
    refused(uri(closed_port), "database-down")


@needs_driver
def test_a_postgres_that_does_not_answer(silent, monkeypatch):
    monkeypatch.setattr(database_module, "TIMEOUT_S", 2)  # libpq knows no shorter one
    refused(uri(silent.getsockname()[1]), "database-down")
    assert asked(silent) == 1


@pytest.mark.slow
def test_a_postgres_store_and_what_can_go_wrong_with_it(postgres, tmp_path, monkeypatch):  # noqa: F811
    port, control = postgres
    monkeypatch.chdir(tmp_path)
    refused(uri(port, "hunter2x"), "database-refused")
    refused(uri(port, name="nothing"), "database-missing")

    refused(uri(port), "artifacts")
    place_artifacts(uri(port), tmp_path)
    store = open_store(uri(port))
    run = start_parent("key", {"source": uri(port)}, store=store)
    assert "hunter2" not in str(store.client.get_run(run.run_id).to_dictionary())

    control("stop")
    with pytest.raises(CpbError) as caught:
        log_metrics(run.run_id, {"x": 1.0}, store)
    assert caught.value.code == "database-down"
    assert "hunter2" not in str(caught.value)
    forget()
    refused(uri(port), "database-down")

    control("start")
    log_metrics(run.run_id, {"x": 1.0}, open_store(uri(port)))


@pytest.mark.slow
def test_the_password_of_the_interfaces_database_is_on_no_command_line(postgres, tmp_path):  # noqa: F811
    from ports import free_port
    from test_ui import command_lines

    port, _ = postgres
    place_artifacts(uri(port), tmp_path)
    own = free_port()
    code = f"""
    import os
    os.environ["MLFLOW_TRACKING_URI"] = {uri(port)!r}
    from tasks.tracking.mlflow_store import open_store
    from flows.ops.serve import serve_ui
    open_store()
    serve_ui(port={own}, ready=lambda where: print(where, flush=True))
    """
    script = tmp_path / "ui.py"
    script.write_text(textwrap.dedent(code))
    path = os.pathsep.join([str(ROOT), *sys.path])
    process = subprocess.Popen(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        printed = process.stdout.readline()
        assert f"127.0.0.1:{own}" in printed
        lines = command_lines(process.pid)
        assert len(lines) == 1
        assert not [line for line in [printed, *lines] if "hunter2" in line]
    finally:
        process.terminate()
        process.wait(60)
    assert "hunter2" not in process.stdout.read()
