"""What cpb uses of MLflow beyond its documentation is still there, in the version that is installed."""

import ast
import re
import sqlite3
import threading
from base64 import b64encode
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path

from benchmarks.size import PRODUCT
from tasks.tracking import store as store_module
from tasks.tracking.store import sqlite_path


def test_the_checked_version_is_the_installed_one():
    assert version("mlflow").rpartition(".")[0] == store_module.CHECKED_MLFLOW.rpartition(".")[0]


def test_the_schema_is_one_that_mlflow_accepts(tmp_path):
    from mlflow.store.db import utils

    path = tmp_path / "mlflow.db"
    path.touch()
    store_module.write_schema(path)

    engine = utils.create_sqlalchemy_engine(f"sqlite:///{path}")
    utils._verify_schema(engine)
    assert utils._all_tables_exist(engine)
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_server_is_asked_once_with_the_clients_credentials(monkeypatch):
    seen = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            seen.append((self.path, self.headers["Authorization"]))
            self.send_response(503)
            self.end_headers()

        def log_message(self, *_):
            pass

    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "me")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "hunter2")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        uri = f"http://127.0.0.1:{server.server_address[1]}"
        assert store_module.ask_server(uri, "/x", 5).status_code == 503
        server.shutdown()
    assert seen == [("/x", f"Basic {b64encode(b'me:hunter2').decode()}")]


def rows(store, *tables):
    with sqlite3.connect(sqlite_path(store.uri)) as connection:
        return {table: connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables}


def test_runs_are_deleted_with_everything_of_theirs_and_nothing_of_others(store):
    kept, *others = (store.client.create_run(store.experiment_id).info.run_id for _ in range(3))
    for run in (kept, *others):
        store.client.log_metric(run, "m", 1)
        store.client.log_param(run, "p", 1)
        store.client.set_tag(run, "t", 1)

    store_module.delete_runs_for_good(store.client, others)

    tables = ("runs", "metrics", "latest_metrics", "params")
    assert rows(store, *tables) == dict.fromkeys(tables, 1)
    (left,) = store.client.search_runs([store.experiment_id])
    assert left.info.run_id == kept


def private_names(source):
    """Return what a file imports from MLflow's inner packages, and its uses of a client's underscored attributes."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{one.name}" for one in node.names}
        elif isinstance(node, ast.Import):
            names = {one.name for one in node.names}
        elif isinstance(node, ast.Attribute) and node.attr in ("_tracking_client", "_get_registry_client"):
            names = {f"mlflow.store {node.attr}"}
        else:
            continue
        found |= {
            name for name in names if re.match(r"mlflow\.(store|server|utils|tracing|tracking\._)", name)
        }
    return found


def test_private_names_stand_in_the_store_and_the_server():
    root = Path(store_module.__file__).parents[2]
    files = [file for package in PRODUCT for file in (root / package).rglob("*.py")]
    users = {file.name for file in files if private_names(file.read_text())}
    assert users == {"store.py", "serve.py"}
