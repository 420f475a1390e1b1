import pytest
from fake_hub import TOKEN, fake_hub


@pytest.fixture
def hub(monkeypatch):
    """A Hub on loopback, and a token for it in the environment."""
    with fake_hub() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield server
