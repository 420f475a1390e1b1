import signal
import socket
import urllib.request
from pathlib import Path

import psutil
import pytest
from interface import free_port, interface

from schemas.errors import CpbError
from tasks.tracking.ui import address, check_port, serve_ui


def test_a_taken_port_names_the_remedy(store):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(CpbError) as caught:
            serve_ui(port=taken.getsockname()[1])
    assert (caught.value.code, caught.value.field) == ("port", "port")


def test_a_free_port_passes():
    check_port("127.0.0.1", free_port())


def test_without_a_store_it_says_how_to_make_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)

    with pytest.raises(CpbError) as caught:
        serve_ui(port=free_port())
    assert caught.value.code == "no-store"


def test_the_filter_is_part_of_the_address(store):
    where = address("http://127.0.0.1:5000", store)

    assert where.filtered_url.startswith(
        f"http://127.0.0.1:5000/#/experiments/{store.experiment_id}/runs?searchFilter="
    )
    assert "test_crps_ratio" in where.filtered_url


def command_lines(pid):
    """What `ps` shows of a process and its descendants."""
    found = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    return [Path(f"/proc/{p.pid}/cmdline").read_bytes().replace(b"\0", b" ").decode() for p in found]


@pytest.mark.slow
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_the_interface_serves_and_stops_cleanly(store, tmp_path, stop):
    port = free_port()
    ignored = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"  # as a shell's background command
    with interface(tmp_path, port, first=ignored) as (process, url):
        with urllib.request.urlopen(url, timeout=30) as answer:
            assert b"MLflow" in answer.read()
        lines = command_lines(process.pid)
        assert any("mlflow server" in line for line in lines)
        assert not [line for line in lines if "sqlite" in line]  # nor, hence, a database's password
        experiment = f"{url}/api/2.0/mlflow/experiments/get-by-name?experiment_name=cpb"
        with urllib.request.urlopen(experiment, timeout=30) as answer:
            assert answer.status == 200  # it is this store all the same
        process.send_signal(stop)
        assert process.wait(60) == 0
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=5)
