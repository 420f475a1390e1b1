"""What reaches MLflow's server through its guard: requests that name it, from its own page, with the password."""

import asyncio
import base64

import httpx
import pytest

from flows.ops import tracking_server
from flows.ops.guard import Guard, Hosts, SignIn
from flows.ops.listeners import TRACKING
from flows.ops.password_file import PasswordFile
from schemas.errors import UsageError
from tasks.storage.urls import without_credentials
from tasks.tracking.mlflow_private import SERVED

AUTH = "cpb:s3cret"
BASIC = {"Authorization": f"Basic {base64.b64encode(AUTH.encode()).decode()}"}


async def app(_scope, _receive, send):
    """Answers every request."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body"})


def ask(
    path="/api", hosts=("head.example.com",), host="head.example.com:5000", base_url="http://127.0.0.1:5000", **headers
):  # fmt: skip
    async def asked():
        transport = httpx.ASGITransport(Guard(app, TRACKING, hosts, sign_in=SignIn(AUTH)))
        async with httpx.AsyncClient(transport=transport, base_url=base_url) as client:
            return await client.post(path, headers={"Host": host, **headers})

    return asyncio.run(asked())


def test_with_the_password_a_request_reaches_the_server():
    for host in ("head.example.com", "HEAD.example.com.:5000", "127.0.0.1:5000", "localhost:1", "[::1]:5000"):
        assert ask(host=host, **BASIC).status_code == 200


def test_without_the_password_only_health_answers():
    wrong = base64.b64encode(b"cpb:guess").decode()
    for given in (
        {},
        {"Authorization": f"Basic {wrong}"},
        {"Authorization": "Bearer s3cret"},
        {"Authorization": "Basic é!"},
    ):
        answer = ask(**{name: value.encode() for name, value in given.items()})
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"].startswith("Basic ")
        assert "s3cret" not in answer.text
    assert ask("/health").status_code == 200
    assert ask("/health", host="evil.example").status_code == 403


@pytest.mark.parametrize(
    "host", ["evil.example", "head.example.com.evil.example", "10.0.0.5", "", "a b", "head.example.com@x"]
)
def test_a_foreign_name_is_refused_before_the_password_counts(host):
    assert ask(host=host, **BASIC).status_code == 403


def test_the_address_at_which_a_request_arrived_is_no_foreign_name():
    assert ask(host="10.0.0.5:5000", base_url="http://10.0.0.5:5000", **BASIC).status_code == 200
    assert ask(host="10.0.0.5:5000", base_url="http://10.0.0.6:5000", **BASIC).status_code == 403


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://localhost:3000", "http://head.example.com:80"]
)
def test_another_sites_page_is_refused(origin):
    assert ask(Origin=origin, **BASIC).status_code == 403


def test_its_own_page_may_ask():
    assert ask(Origin="http://head.example.com:5000", **BASIC).status_code == 200
    assert ask(Origin="https://head.example.com:5000", **BASIC).status_code == 200  # behind a proxy with TLS


def test_a_name_with_a_wildcard_is_no_host():
    for name in ("*", "*.example.com", "a/b", "a,b", ""):
        with pytest.raises(UsageError):
            Hosts.of([name])


def test_the_variables_of_mlflows_app_are_those_of_this_version():
    from mlflow.server import constants

    names = (
        "BACKEND_STORE_URI",
        "REGISTRY_STORE_URI",
        "ARTIFACTS_DESTINATION",
        "ARTIFACT_ROOT",
        "SERVE_ARTIFACTS",
    )
    assert tuple(SERVED.values()) == tuple(getattr(constants, f"{name}_ENV_VAR") for name in names)


def test_without_a_database_it_says_where_to_name_one(monkeypatch, tmp_path):
    monkeypatch.delenv(tracking_server.DATABASE, raising=False)
    with pytest.raises(UsageError) as caught:
        tracking_server.serve_tracking("127.0.0.1", 5000, (), None, print)
    assert (caught.value.code, caught.value.field) == ("database", "MLFLOW_BACKEND_STORE_URI")
    said = str(caught.value)
    assert without_credentials(said) == said  # what is taken for a password would be cut out of the example
    monkeypatch.setenv(tracking_server.DATABASE, "file:///somewhere")
    with pytest.raises(UsageError, match="is not a database") as caught:
        tracking_server.serve_tracking("127.0.0.1", 5000, (), None, print)
    assert without_credentials(str(caught.value)) == str(caught.value)


def test_the_password_lies_in_a_file_of_its_owner(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    file = tracking_server.password_file()
    assert isinstance(file, PasswordFile)
    made = file.make()
    assert file.path == tmp_path / "cpb/tracking-auth"
    assert file.path.stat().st_mode & 0o777 == 0o600
    assert file.read() == file.make() == made
