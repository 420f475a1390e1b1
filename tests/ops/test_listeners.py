"""Every server of cpb: foreign pages and strangers get nothing, and nothing is left of one that was killed."""

import ast
import dataclasses
import http.client
import signal
from pathlib import Path

import pytest

from flows.ops.listeners import LISTENERS, PAGE
from flows.ops.serve import run_server
from tests.tools.ports import free_port
from tests.tools.started_servers import COMMANDS, ROOT, listens, processes_of, started, wait_until

ALLOWED = {"flows/ops/serve.py", "flows/ops/half_sent.py", "tasks/market/simulator.py"}
"""Modules that may open a port. `half_sent`: the HTTP of the first; the simulator: for its command, on loopback."""
SERVERS = (
    "uvicorn",
    "hypercorn",
    "gunicorn",
    "waitress",
    "http.server",
    "socketserver",
    "wsgiref",
    "aiohttp.web",
)
STARTING = ("mlflow server", "prefect server", "-m uvicorn", ".listen(", "start_server(", "create_server(")


def imports_of(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)


def opens_a_port(path):
    """Whether a module imports a server, calls for one, or runs one as a command (a list of words)."""
    tree = ast.parse(path.read_text())
    words = [
        " ".join(e.value for e in node.elts if isinstance(e, ast.Constant) and isinstance(e.value, str))
        for node in ast.walk(tree)
        if isinstance(node, ast.List | ast.Tuple)
    ]
    calls = [
        f".{ast.unparse(node.func).rpartition('.')[2]}("
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
    ]
    text = "\n".join(words + calls)
    return any(name.startswith(SERVERS) for name in imports_of(path)) or any(
        part in text for part in STARTING
    )


def test_no_module_opens_a_port_besides_the_one_that_puts_the_guard_before_it(tmp_path):
    packages = ("flows", "tasks", "webapp", "schemas", "cpbmodels")
    modules = {
        str(path.relative_to(ROOT))
        for package in packages
        for path in (ROOT / package).rglob("*.py")
        if opens_a_port(path)
    }
    assert modules == ALLOWED
    probe = tmp_path / "probe.py"
    for text in (
        "import uvicorn",
        "from http.server import HTTPServer",
        "run([python, '-m', 'mlflow', 'server'])",
    ):
        probe.write_text(text)
        assert opens_a_port(probe)


def test_a_listener_that_is_not_in_the_table_is_not_served():
    new = dataclasses.replace(PAGE, name="new")
    with pytest.raises(ValueError, match="not in LISTENERS"):
        run_server(new, lambda: None, "127.0.0.1", free_port(), print)


def test_the_page_on_security_names_each_listener():
    text = (ROOT / "docs/operations.md").read_text()
    for listener in LISTENERS:
        command = COMMANDS[listener.name].removeprefix("flows.cli ").partition(" ")[0]
        assert f"`cpb {command}`" in text or command.startswith("flows.deploy"), listener.name
    assert "`cpb deploy up`" in text
    assert "`--source sim`" in text
    assert "Ray" in text


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with an empty MLflow store in it."""
    from tasks.tracking.experiment import store_at

    folder = tmp_path_factory.mktemp("listeners")
    (folder / "data/mlruns").mkdir(parents=True)
    store_at(f"sqlite:///{folder}/data/mlruns/mlflow.db")
    return folder


def ask(port, path="/", method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.putrequest(method, path, skip_host=True)
        for name, value in ({"Host": f"127.0.0.1:{port}"} | headers).items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


OPEN = {  # what anybody of this machine may read: no data, but for the page's public forecasts
    "page": ["/"],
    "ui": [],
    "prefect": ["/", "/ui-settings", "/openapi.json", "/docs", "/redoc", "/api/health", "/api/ready"],
}
DATA = {  # what a stranger would read or write
    "page": [],
    "ui": [
        "/",
        "/graphql",
        "/get-artifact?path=x&run_uuid=x",
        "/api/2.0/mlflow/experiments/search",
        "/ajax-api/2.0/mlflow/experiments/search",
        "/api/2.0/mlflow-artifacts/artifacts",
        "/signup",
        "/version",
        "/metrics",
        "/openapi.json",
        "/docs",
        "/v1/traces",
        "/health",
        "/health/",
        "/static-files/index.html",
        "/ajax-api/2.0/mlflow/get-artifact?run_uuid=x&path=key",
        "//health/../version",
        "/ajax-api/2.0/mlflow/upload-artifact?run_uuid=x&path=new",
        "/api/2.0/mlflow-artifacts/artifacts?path=..",
        "/model-versions/get-artifact?name=x&version=1&path=key",
        "/static-files/../../../../../../etc/passwd",
    ],
    "prefect": ["/api/flows/filter", "/api/version", "/api/admin/settings", "/api/deployments/filter"],
}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("listener", LISTENERS, ids=lambda listener: listener.name)
def test_foreign_pages_and_strangers_get_nothing_and_sigterm_leaves_nothing(listener, folder):
    with started(listener, folder) as (process, port):
        for path in OPEN[listener.name]:
            assert ask(port, path)[0] == 200
        _, headers, _ = ask(port)
        for path in (*OPEN[listener.name], *DATA[listener.name]):
            for method in ("GET", "POST", "OPTIONS"):
                foreign, marked, told = ask(port, path, method, Host="evil.example")
                assert foreign == listener.wrong_host
                assert (b"--allowed-hosts" in told) == (listener is PAGE)
                assert {"content-security-policy", "x-content-type-options"} <= {
                    name.lower() for name in marked
                }
                for origin in ("https://evil.example", "null", f"http://127.0.0.1:{port + 1}"):
                    status, sent, _ = ask(port, path, method, Origin=origin)
                    assert status == 403
                    assert not [name for name in sent if name.lower().startswith("access-control")]
        for path in DATA[listener.name]:
            for method in ("GET", "POST", "PUT", "DELETE"):
                for guess in ({}, {"Authorization": "Basic Y3BiOmd1ZXNz"}, {"X-Forwarded-For": "127.0.0.1"}):
                    status, sent, body = ask(port, path, method, **guess)
                    assert status in (401, 405), (path, method, body)
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["X-Frame-Options"] in ("DENY", "SAMEORIGIN")
        policy = dict(rule.split(maxsplit=1) for rule in headers["Content-Security-Policy"].split("; "))
        foreign = [
            s
            for s in policy["connect-src"].split()
            if not s.endswith((f"127.0.0.1:{port}", f"localhost:{port}"))
        ]
        assert set(foreign) <= {"'self'", "data:", "blob:"}
        assert policy["frame-ancestors"] in ("'none'", "'self'")
        check_end(listener, folder, process, port, signal.SIGTERM)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP], ids=lambda number: number.name)
@pytest.mark.parametrize("listener", LISTENERS, ids=lambda listener: listener.name)
def test_nothing_is_left_of_a_server_whose_command_ends(listener, folder, number):
    """SIGTERM ends those of the test above."""
    with started(listener, folder) as (process, port):
        if number != signal.SIGKILL:  # asked for an end, it may finish a request
            ask(port, "/health")
        check_end(listener, folder, process, port, number)


def check_end(listener, folder, process, port, number):
    """Send a signal to a server's command; nothing of it may go on."""
    process.send_signal(number)
    code = process.wait(60)
    wait_until(lambda: not processes_of(folder), 60)
    assert not listens(port)
    said = Path(folder / f"{listener.name}.log").read_text()
    if number != signal.SIGKILL:
        assert code == 0, said
        assert "Traceback" not in said
