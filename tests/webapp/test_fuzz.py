"""Whatever is asked, the answer is what `/openapi.json` promises, and never a fault of the service."""

import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from serving import client_of, serve

from webapp.app import create_app

ODD = st.one_of(
    st.text(max_size=30),
    st.integers().map(str),
    st.floats().map(str),
    st.datetimes().map(lambda moment: moment.isoformat()),
    st.datetimes(timezones=st.timezones()).map(lambda moment: moment.isoformat()),
    st.sampled_from(
        ["", "null", "true", "%00", "\x00", "../..", "1e400", "0000-00-00", "9999-12-31T23:59:59-23:59"]
    ),
)
PATH = {
    "symbol": st.one_of(st.sampled_from(["BTC", "ethusdt", "PEPE"]), ODD),
    "timeframe": st.one_of(st.sampled_from(["1h", "15m", "1mo"]), ODD),
    "name": st.one_of(st.sampled_from(["board", "coins"]), ODD),
    "run_id": st.one_of(st.from_regex("[0-9a-f]{32}", fullmatch=True), ODD),
}
QUERY = {
    "market": st.one_of(st.sampled_from(["spot", "um", "cm", "sim"]), ODD),
    "limit": st.one_of(st.integers(1, 5000).map(str), ODD),
    "until": st.one_of(st.datetimes().map(lambda moment: f"{moment.isoformat()}Z"), ODD),
    "issued_at": st.one_of(st.just("2025-06-09T12:00:00Z"), ODD),
    "format": st.one_of(st.sampled_from(["json", "csv"]), ODD),
    "timeframe": PATH["timeframe"],
    "run": st.one_of(st.from_regex("[0-9a-f]{4,32}", fullmatch=True), ODD),
    "theme": st.one_of(st.sampled_from(["light", "dark"]), ODD),
    "models": st.one_of(st.sampled_from(["har,gru", "gru,gru", "har,nothing"]), ODD),
    "earlier": st.one_of(st.integers(0, 20).map(str), ODD),
    "n": st.one_of(st.integers(1, 20).map(str), st.just("5000"), ODD),
    "seed": st.one_of(st.integers(0, 2**32 - 1).map(str), st.just(str(2**32)), ODD),
}


@pytest.fixture(scope="module")
def service(mixed):
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        patch.chdir(mixed)
        with client_of(mixed) as client:
            yield client, client.get("/openapi.json").json()


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_request_makes_it_fail(service, data):
    client, described = service
    path = data.draw(st.sampled_from(sorted(described["paths"])))
    operation = described["paths"][path]["get"]
    query = {}
    for parameter in operation.get("parameters", []):
        name = parameter["name"]
        if parameter["in"] == "path":
            value = data.draw(PATH[name]).encode("utf-8", "replace").decode()
            path = path.replace(f"{{{name}}}", "".join(f"%{byte:02X}" for byte in value.encode()) or "x")
        elif data.draw(st.booleans()):
            query[name] = data.draw(QUERY[name]).encode("utf-8", "replace").decode()

    answer = client.get(path, params=query)

    # A path parameter with a slash names another path, which is unknown.
    assert str(answer.status_code) in {*operation["responses"], "404"}
    if answer.status_code != 200:
        assert isinstance(answer.json()["detail"], str)
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_schemathesis_finds_nothing(mixed, monkeypatch, tmp_path):
    monkeypatch.chdir(mixed)
    with serve(create_app(mixed / "data")) as port:
        url = f"http://127.0.0.1:{port}/openapi.json"
        command = [
            sys.executable,
            "-m",
            "schemathesis.cli",
            "run",
            url,
            "--max-examples",
            "100",
            "--no-color",
        ]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=840, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
