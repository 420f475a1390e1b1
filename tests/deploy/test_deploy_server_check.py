"""Whether a server is in use, and what is said within 10 s where it does not answer."""

import subprocess
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import create_server

import pytest
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

from flows import prefect
from flows.prefect import check_server, server_in_use
from schemas.errors import CpbError

SECRET = "cpb:a-secret"


@contextmanager
def api(status):
    seen = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            self.answer(status, "[]")

        def do_GET(self):  # the client first asks for a token, as Prefect's server without them answers it
            self.answer(422 if status == 200 else status, "CSRF protection is disabled.")

        def answer(self, code, text):
            seen.append(self.headers["Authorization"])
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_):
            """Stay silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with temporary_settings(
            {PREFECT_API_URL: f"http://127.0.0.1:{server.server_port}/api", PREFECT_API_AUTH_STRING: SECRET}
        ):
            yield seen
    finally:
        server.shutdown()


def failure():
    with pytest.raises(CpbError) as error:
        check_server()
    assert SECRET not in str(error.value)
    return error.value


def test_a_server_that_accepts_the_credentials_is_fine():
    with api(200) as seen:
        check_server()
    assert seen
    assert all(sent and sent.startswith("Basic ") for sent in seen)


def test_refused_credentials_are_said_with_the_remedy():
    with api(401):
        error = failure()
    assert (error.code, error.field) == ("server-auth", "PREFECT_API_AUTH_STRING")
    assert "cpb-api-auth" in str(error)


def test_a_server_that_fails_is_named():
    with api(500):
        assert failure().code == "server-error"


def test_nobody_listens():
    with create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with temporary_settings({PREFECT_API_URL: f"http://user:hidden@127.0.0.1:{port}/api"}):
        error = failure()
    assert (error.code, error.field) == ("server-unreachable", "PREFECT_API_URL")
    assert "hidden" not in str(error)


def test_a_server_that_never_answers(monkeypatch):
    assert prefect.ANSWER_WITHIN_S < 10
    monkeypatch.setattr(prefect, "ANSWER_WITHIN_S", 2)
    with create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/api"
        with temporary_settings({PREFECT_API_URL: url}):
            assert failure().code == "server-unreachable"


@pytest.mark.parametrize(
    "where",
    [
        "nowhere",
        *(
            pytest.param(place, marks=pytest.mark.slow)
            for place in ("environment", "profile", "prefect.toml", ".env")
        ),
    ],
)
def test_whatever_prefect_would_use_counts(tmp_path, monkeypatch, where):
    url = "http://127.0.0.1:1/api"
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    if where == "environment":
        monkeypatch.setenv("PREFECT_API_URL", url)
    elif where == "profile":
        text = f'active = "mine"\n[profiles.mine]\nPREFECT_API_URL = "{url}"\n'
        (tmp_path / "home" / "profiles.toml").write_text(text)
    elif where == "prefect.toml":
        (tmp_path / "prefect.toml").write_text(f'[api]\nurl = "{url}"\n')
    elif where == ".env":
        (tmp_path / ".env").write_text(f"PREFECT_API_URL={url}\n")
    code = "from flows.prefect import server_in_use; print(server_in_use())"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.strip() == str(where != "nowhere"), done.stderr


def test_a_server_is_in_use_where_one_is_set():
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:1/api"}):
        assert server_in_use()
