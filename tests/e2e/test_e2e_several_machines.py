"""Two homes, one MLflow server and one Prefect server over PostgreSQL, as on several machines.

Each machine is a home, a working folder, a folder for temporary files and a host name of its own: no lock is shared.
"""

import base64
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.tools.deployed import Deployed
from tests.tools.mlflow_server import documented_server
from tests.tools.postgres_tools import postgres_server

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

SIM = ("--source", "sim", "--coins", "BTC", "--timeframes", "1h", "--as-of", "2025-06-06", "--json")
TRAIN = ("train-all", *SIM, "--since", "2025-03", "--preset", "smoke", "--architectures", "har")
FOREIGN = "https://evil.example"


OTHER_HOST = """
import pathlib, socket
import tasks.storage.locks
socket.gethostname = lambda: {host!r}
tasks.storage.locks.SHARED_FOLDER = pathlib.Path({tmp!r})
"""
"""A `sitecustomize.py`, by which processes of this host are those of another."""


class Machine:
    """A home that uses the servers. `program`: what runs commands that are waited for."""

    def __init__(self, folder, env, program=(sys.executable, "-m", "flows.cli")):
        self.folder, self.program = folder, program
        tmp, site = folder / "tmp", folder / "site"
        tmp.mkdir(parents=True)
        site.mkdir()
        (site / "sitecustomize.py").write_text(OTHER_HOST.format(host=folder.name, tmp=str(tmp)))
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("CPB_", "MLFLOW_", "PREFECT_API"))}
        paths = {"TMPDIR": str(tmp), "PYTHONPATH": f"{site}:{ROOT}"}
        self.env = kept | paths | env

    def start(self, *arguments, code="", program=None, **env):
        run = program or [sys.executable, *(["-c", code] if code else ["-m", "flows.cli"])]
        return subprocess.Popen(
            [*run, *map(str, arguments)],
            cwd=self.folder,
            env=self.env | env,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def __call__(self, *arguments, exit_code=0, **env):
        """Run a command and return the object that it prints last."""
        return ended(self.start(*arguments, program=self.program, **env), exit_code)


def ended(process, exit_code=0, seconds=900):
    out, err = process.communicate(timeout=seconds)
    assert process.returncode == exit_code, out + err
    return json.loads(out.strip().splitlines()[-1]) if out.strip() else err


@pytest.fixture(scope="module")
def world(tmp_path_factory, forking):
    """The two servers, and two machines that have just been told of them."""
    place = tmp_path_factory.mktemp("several")
    with postgres_server("mlflow", "prefect") as (port, _):

        def database(name, driver=""):
            return f"postgresql{driver}://cpb:hunter2@127.0.0.1:{port}/{name}"

        on_postgres = {"PREFECT_SERVER_DATABASE_CONNECTION_URL": database("prefect", "+asyncpg")}
        deployed = Deployed(tmp_path_factory.mktemp("prefect"), **on_postgres)
        try:
            deployed.up()
            with documented_server(place / "head", database("mlflow")) as (_, url, password, _):
                shared = {
                    "MLFLOW_TRACKING_URI": url,
                    "MLFLOW_TRACKING_USERNAME": "cpb",
                    "MLFLOW_TRACKING_PASSWORD": password,
                }
                machines = [Machine(place / name, shared, [forking / "cpb"]) for name in ("one", "two")]
                # at once, on a database without an experiment
                begun = [machine.start(*TRAIN) for machine in machines]
                trained = [ended(process) for process in begun]
                yield {
                    "head": place / "head/mlflow",
                    "url": url,
                    "password": password,
                    "database": database,
                    "deployed": deployed,
                    "machines": machines,
                    "trained": trained,
                }
        finally:
            assert deployed.close() == []


def test_two_homes_that_begin_at_once_end_complete_in_one_store(world):
    assert [first["exit"] for first in world["trained"]] == [0, 0]
    first, second = world["machines"]
    (champion,) = first("champions", "--json")["champions"]
    assert second("champions", "--json")["champions"] == [champion]
    assert (champion["symbol"], champion["architecture"]) == ("BTCUSDT", "har")
    kept = [path for path in (world["head"] / "artifacts").rglob("*") if path.is_file()]
    assert {"model.safetensors", "MLmodel"} <= {path.name for path in kept}
    # no artifact stayed at home
    assert not any((machine.folder / "mlruns").exists() for machine in (first, second))


def test_a_home_that_never_trained_forecasts_with_the_servers_champion(world, tmp_path):
    first = world["machines"][0]
    third = Machine(tmp_path / "three", first.env, first.program)
    assert third("forecast", *SIM)["series"] == 1
    assert third("forecast", *SIM)["new_rows"] == 0


def test_a_file_that_is_damaged_on_the_server_is_found(world):
    first = world["machines"][0]
    (champion,) = first("champions", "--json")["champions"]
    # Each machine registered a version; its copy, which the other has fetched or will, is named by its run.
    (copy,) = (first.folder / "data/champions").glob(f"cpb-sim-BTCUSDT-1h-{champion['version']}-*")
    (kept,) = (world["head"] / "artifacts").glob(f"*/{copy.name.rpartition('-')[2]}*/artifacts")
    shutil.rmtree(copy)  # an intact copy is not fetched again
    whole = {}
    for path in (kept / "config.json", kept / "model.safetensors"):
        whole[path] = path.read_bytes()
        path.write_bytes(whole[path][:-1])
    damaged = first("verify", "--market", "sim", "--json", exit_code=1)["damaged"]
    assert {Path(damage["path"]).name for damage in damaged} == {"config.json", "model.safetensors"}
    for path, content in whole.items():
        path.write_bytes(content)
    assert first("verify", "--market", "sim", "--json")["damaged"] == []


def ask(
    world,
    path="/api/2.0/mlflow/experiments/get-by-name?experiment_name=cpb",
    method="GET",
    auth="",
    **headers,
):
    if auth:
        headers["Authorization"] = f"Basic {base64.b64encode(auth.encode()).decode()}"
    return httpx.request(method, f"{world['url']}{path}", headers=headers, timeout=30, trust_env=False)


def test_an_attacker_of_mlflows_server_gets_nothing(world):
    right = f"cpb:{world['password']}"
    assert ask(world, auth=right).status_code == 200
    routes = [
        "/",
        "/graphql",
        "/get-artifact?path=x&run_uuid=x",
        "/api/2.0/mlflow/runs/search",
        "/ajax-api/2.0/mlflow/experiments/search",
        "/api/2.0/mlflow-artifacts/artifacts",
        "/signup",
        "/version",
        "/metrics",
        "/openapi.json",
        "/docs",
        "/v1/traces",
    ]
    for route in routes:
        for method in ("GET", "POST", "PUT", "DELETE"):
            for auth in ("", "cpb:guess", "admin:password1234"):
                assert ask(world, route, method, auth).status_code == 401
        if route != "/version":  # MLflow answers it to any name
            assert ask(world, route, auth=right, Host="evil.example").status_code == 403
    for route in routes[3:6]:
        for origin in (FOREIGN, "null"):
            assert ask(world, route, "POST", right, Origin=origin).status_code == 403
    assert ask(world, auth=right, Host="head.example.com").status_code == 200
    answer = ask(world, "/ajax-api/2.0/mlflow/experiments/search", "POST", right, Origin=world["url"])
    assert answer.status_code != 403


def test_no_secret_is_shown_or_kept(world):
    shown = subprocess.run(["ps", "axww", "-o", "args"], capture_output=True, text=True, check=True).stdout
    assert "mlflow server" in shown
    secrets = ["hunter2", world["password"], base64.b64encode(f"cpb:{world['password']}".encode()).decode()]
    assert not [secret for secret in secrets if secret in shown]
    folders = [
        world["head"] / "artifacts",
        *(machine.folder for machine in world["machines"]),
        world["deployed"].home,
        world["deployed"].state,
    ]
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 50
    kept = [path for path in files if any(secret.encode() in path.read_bytes() for secret in secrets)]
    assert kept == []
    assert {path.stat().st_mode & 0o077 for path in (world["head"] / "auth.ini", world["head"])} == {0}
    import psycopg2

    with psycopg2.connect(world["database"]("mlflow")) as connection, connection.cursor() as cursor:
        for table in ("params", "tags", "experiment_tags"):
            cursor.execute(f"SELECT count(*) FROM {table} WHERE value ~ %s", ("|".join(secrets[:2]),))
            assert cursor.fetchone() == (0,)


def test_flow_runs_work_on_a_prefect_server_over_postgres(world):
    deployed = world["deployed"]
    done = deployed.json("deploy", "run", "quick/quick", "--param", "text=PG", "--watch")
    assert done["exit"] == 0
    assert deployed.json("deploy", "status")["problems"] == []
