"""What a web page, or any program that reaches the port, can do to the Prefect server of `cpb deploy up`: nothing."""

import asyncio
import base64
import json
import re
import subprocess
import sys
import time

import httpx
import pytest
import websockets

from tests.tools.deployed import ROOT, Deployed, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

FOREIGN = "https://evil.example"
SOCKETS = [
    "events/in",
    "events/out",
    "logs/out",
    "task_runs/subscriptions/scheduled",
    "work_pools/local-gpu/workers/connect",
]


@pytest.fixture(scope="module")
def deployed(tmp_path_factory):
    deployed = Deployed(tmp_path_factory.mktemp("attacked"))
    deployed.started = deployed.up()
    yield deployed
    assert deployed.close() == []


@pytest.fixture(scope="module")
def job(deployed):
    """Return the path and the body of a request that makes the worker run a shell command."""
    deployment = deployed.ask("deployments/name/quick/quick").json()["id"]
    pwned = deployed.folder / "pwned"
    command = f"{sys.executable} -c \"open('{pwned}', 'w')\""
    return f"deployments/{deployment}/create_flow_run", {"job_variables": {"command": command}}, pwned


def asked_for(deployed):
    return [run["id"] for run in deployed.runs() if not run["auto_scheduled"]]


def raw(deployed, method, path, body=None, **headers):
    """Send a request exactly as given: httpx adds no Content-Type to raw bytes, and `Host` is ours to choose."""
    content = json.dumps(body).encode() if body is not None else None
    return httpx.request(
        method,
        f"http://127.0.0.1:{deployed.port}{path}",
        content=content,
        headers=headers,
        timeout=30,
        trust_env=False,
    )


def test_a_page_cannot_post_preflight_or_rebind_its_name(deployed, job):
    path, body, pwned = job
    before = asked_for(deployed)
    # A "simple" request: no Content-Type, so the browser asks nobody before it sends it.
    simple = raw(deployed, "POST", f"/api/{path}", body, Origin=FOREIGN)
    assert simple.status_code == 403
    assert raw(deployed, "POST", f"/api/{path}", body, Origin="null").status_code == 403
    # another program, without the password
    assert raw(deployed, "POST", f"/api/{path}", body).status_code == 401
    wrong = base64.b64encode(b"cpb:guess").decode()
    assert raw(deployed, "POST", f"/api/{path}", body, Authorization=f"Basic {wrong}").status_code == 401
    wish = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
    preflight = raw(deployed, "OPTIONS", f"/api/{path}", Origin=FOREIGN, **wish)
    assert preflight.status_code == 403
    assert not [name for name in preflight.headers if name.startswith("access-control-")]
    for page in ("/", "/ui-settings", "/api/health", "/api/ready", "/api/version", f"/api/{path}"):
        for host in (
            "evil.example",
            f"evil.example:{deployed.port}",
            f"127.0.0.1.evil.example:{deployed.port}",
        ):
            answer = raw(deployed, "GET", page, Host=host)
            assert (page, host, answer.status_code) == (page, host, 403)
    time.sleep(6)  # longer than the worker's interval
    assert asked_for(deployed) == before
    assert not pwned.exists()


def test_with_the_password_the_same_request_does_run_a_command(deployed, job):
    """What is at stake: the request that others are refused is executed."""
    path, body, pwned = job
    assert deployed.ask(path, body).status_code == 201
    wait_for(pwned.exists, 60)


def test_no_route_answers_without_the_password(deployed):
    schema = raw(deployed, "GET", "/openapi.json").json()
    routes = [(path, method.upper()) for path, methods in schema["paths"].items() for method in methods]
    assert len(routes) > 150
    nothing = "00000000-0000-0000-0000-000000000000"
    open_routes = []
    with httpx.Client(base_url=deployed.api, trust_env=False, timeout=30) as client:
        for path, method in routes:
            filled = "/".join(nothing if part.startswith("{") else part for part in path.split("/"))
            if client.request(method, filled).status_code != 401:
                open_routes.append((path, method))
    assert sorted(open_routes) == [("/health", "GET"), ("/ready", "GET")]


def test_the_document_names_every_route_that_is_open(deployed):
    """All routes of the application, not only those of its API's description."""
    listed = (
        "import os; from prefect.server.api.server import create_app; app = create_app(final=True);"
        "print(*sorted({r.path for r in app.routes}), sep='\\n')"
    )
    done = subprocess.run(
        [sys.executable, "-c", listed],
        env=deployed.env,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    routes = [path for path in done.stdout.split() if path not in ("/api", "")]
    assert "/redoc" in routes
    found = {path for path in routes if raw(deployed, "GET", path).status_code not in (401, 403, 404, 405)}
    row = next(
        line
        for line in (ROOT / "docs/operations.md").read_text().splitlines()
        if line.startswith("| Prefect's server")
    )
    named = set(re.findall(r"`(/[^`]+)`", row))
    assert found - {"/"} <= named
    for path in named:
        assert raw(deployed, "GET", path).status_code == 200


@pytest.mark.parametrize("path", SOCKETS)
def test_websockets_are_refused(deployed, path):
    url = f"ws://127.0.0.1:{deployed.port}/api/{path}"

    async def refused_at_once(url=url, **options):
        with pytest.raises(websockets.InvalidStatus) as refusal:
            await websockets.connect(url, subprotocols=["prefect"], proxy=None, **options)
        assert refusal.value.response.status_code == 403

    async def says_nothing(*messages, subprotocols=None):
        """Connect as a program would, send `messages`, and return what comes back before the server closes."""
        try:
            async with websockets.connect(url, subprotocols=subprotocols, proxy=None) as socket:
                for message in messages:
                    await socket.send(json.dumps(message))
                return [message async for message in socket]
        except (websockets.InvalidStatus, websockets.ConnectionClosedError):
            return []

    async def attack():
        await refused_at_once(origin=FOREIGN)
        await refused_at_once(origin=FOREIGN, additional_headers={"Authorization": "Basic Y3BiOmd1ZXNz"})
        await refused_at_once(
            f"ws://evil.example:{deployed.port}/api/{path}", host="127.0.0.1", port=deployed.port
        )
        flood = [refused_at_once(origin=FOREIGN) for _ in range(120)]  # Prefect's limit of requests is 100
        await asyncio.gather(*flood)
        event = {
            "occurred": "2026-01-01T00:00:00Z",
            "event": "evil",
            "resource": {"prefect.resource.id": "evil"},
        }
        for first in ({"type": "auth", "token": "guess"}, {"type": "auth", "token": None}, event):
            got = await says_nothing(first, event, {"type": "filter", "filter": {}}, subprotocols=["prefect"])
            assert got == []
        assert await says_nothing(event) == []

    asyncio.run(asyncio.wait_for(attack(), 60))
    assert deployed.ask("flows/filter", {}).status_code == 200
    assert deployed.ask("events/filter", {"filter": {"event": {"name": ["evil"]}}}).json()["events"] == []


def test_the_password_is_for_its_owner_alone_and_kept(deployed):
    file = deployed.home / "cpb-api-auth"
    assert file.stat().st_mode & 0o777 == 0o600
    assert len(deployed.password.partition(":")[2]) >= 32
    shown = subprocess.run(["ps", "axww", "-o", "args"], capture_output=True, text=True, check=True).stdout
    secret = deployed.password.partition(":")[2]
    encoded = base64.b64encode(deployed.password.encode()).decode()
    assert "flows.deploy.services" in shown
    assert secret not in shown
    assert encoded not in shown
    kept = [
        path for folder in (deployed.home, deployed.state) for path in folder.rglob("*") if path.is_file()
    ]
    assert len(kept) > 3
    leaked = [
        path
        for path in kept
        if path != file and any(s.encode() in path.read_bytes() for s in (secret, encoded))
    ]
    assert leaked == []
