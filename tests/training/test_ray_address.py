"""What is said of a Ray cluster before anything is fetched; no Ray is needed for it."""

import errno
import re
import socket
import stat

import pytest

from cpbmodels.errors import pip_install
from flows.train_all import run_train_all
from schemas.errors import CpbError, UsageError
from schemas.run import RunSpec
from tasks.training.ray import check_cluster, environment, train_shard


@pytest.fixture
def token(tmp_path, monkeypatch):
    """Where Ray's token lies in this test; there is none yet."""
    for name in ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "ray" / "auth_token"
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(path))
    return path


@pytest.mark.parametrize("address", [":6379", "head", "auto", "ray://head:10001", "user:hunter2@head:6379"])
def test_what_is_no_place_is_refused_and_not_shown(token, monkeypatch, address):
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(UsageError, match="is not HOST:PORT") as caught:
        check_cluster()
    assert (caught.value.code, caught.value.field) == ("ray-address", "RAY_ADDRESS")
    assert "hunter2" not in str(caught.value)


def test_a_cluster_that_is_not_there_is_said_at_once(token, monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(CpbError, match="--engine local") as caught:
        check_cluster()
    assert caught.value.code == "ray-unreachable"
    assert address in str(caught.value)


def test_a_token_is_made_for_its_owner_alone_and_one_that_others_read_is_refused(token):
    check_cluster()
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    made = token.read_text()
    assert len(made) == 64
    check_cluster()
    assert token.read_text() == made
    token.chmod(0o644)
    with pytest.raises(CpbError, match="with mode 600") as caught:
        check_cluster()
    assert caught.value.code == "ray-token"
    assert made not in str(caught.value)


def test_no_token_is_made_for_a_cluster_elsewhere(token, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as head:
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{head.getsockname()[1]}")
        with pytest.raises(CpbError, match="copy it from the head") as caught:
            check_cluster()
    assert caught.value.code == "ray-token"
    assert not token.exists()


def test_ray_that_is_not_installed_is_told_before_anything_is_fetched(monkeypatch, tmp_path):
    monkeypatch.setenv("CPB_HOME", str(tmp_path))
    monkeypatch.setattr("tasks.steps.find_spec", lambda name: None)
    spec = RunSpec(coins="BTC", timeframes="1h", source="sim", architectures="linear", engine="ray")
    with pytest.raises(
        CpbError, match=re.escape(f"package ray is not installed; run `{pip_install('ray>=2.52')}`")
    ):
        run_train_all(spec, print)


def test_a_full_disk_of_a_node_is_a_value_that_names_the_node(monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tasks.training.ray.write_files", full)
    files, error = train_shard({}, "fleets/0123456789abcdef", 1, 0, 60.0, environment())
    assert files == {}
    assert isinstance(error, CpbError)
    assert f"node {socket.gethostname()}: [Errno 28] No space left" in str(error)
