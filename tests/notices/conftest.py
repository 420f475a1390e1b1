import pytest

from tests.tools.inbox import inbox as serve_inbox


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty home; nobody is told yet."""
    for name in ("CPB_NOTIFY", "CPB_HEARTBEAT_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CPB_HOME", str(tmp_path))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    return tmp_path


@pytest.fixture
def inbox(home, monkeypatch):
    """A service that accepts messages, named in CPB_NOTIFY."""
    with serve_inbox() as service:
        monkeypatch.setenv("CPB_NOTIFY", service.url)
        yield service
