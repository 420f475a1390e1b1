"""`from_hub`: one model folder alone, checked, from the Hub or from the cache."""

import re
import socket
import sys

import numpy as np
import pytest
from fake_hub import TOKEN, fake_hub
from hub_models import REPO, publish_models, series, trained

from cpbmodels import ModelError, from_hub, load
from cpbmodels.hub import commit_of, fetch, list_models


@pytest.fixture
def hub(monkeypatch, tmp_path):
    with fake_hub() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
        yield server


@pytest.fixture
def published(hub, tmp_path, monkeypatch):
    """The commit of a repository with two models; it is read without a token."""
    commit = publish_models(
        tmp_path, trained(tmp_path / "a"), trained(tmp_path / "b", "ETHUSDT", market="sim", seed=1)
    )
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "none"))
    hub.requests.clear()
    return commit


def test_it_fetches_the_two_files_of_one_model_and_forecasts_as_the_original_does(hub, published, tmp_path):
    model = from_hub(REPO, "BTCUSDT", "1h")

    original = load(tmp_path / "a")
    np.testing.assert_array_equal(model.forecast(series()).candle, original.forecast(series()).candle)
    got = [path for method, path in hub.requests if method == "GET"]
    assert [path.rpartition("BTCUSDT")[2] for path in got] == ["/1h/config.json", "/1h/model.safetensors"]
    assert "weights_sha256" not in model.config
    load(model.save(tmp_path / "again"))


def test_both_files_are_of_one_commit_where_someone_publishes_in_between(
    hub, published, tmp_path, monkeypatch
):
    other = hub.repos[REPO].files | {
        "BTCUSDT/1h/model.safetensors": hub.repos[REPO].files["sim-ETHUSDT/1h/model.safetensors"]
    }
    hub.on_read.append(lambda repo: repo.commit(other))

    folder = fetch(REPO, "BTCUSDT/1h")

    assert commit_of(folder) == published
    assert (folder / "model.safetensors").read_bytes() == (tmp_path / "a/model.safetensors").read_bytes()


def test_a_whole_commit_is_read_from_the_cache_without_a_request(hub, published):
    first = from_hub(REPO, "BTCUSDT", "1h", revision=published)
    hub.requests.clear()

    again = from_hub(REPO, "BTCUSDT", "1h", revision=published)

    assert hub.requests == []
    np.testing.assert_array_equal(first.rows, again.rows)


def test_offline_mode_asks_nobody(hub, published, monkeypatch):
    from_hub(REPO, "BTCUSDT", "1h")
    hub.requests.clear()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)

    assert from_hub(REPO, "BTCUSDT", "1h").config["symbol"] == "BTCUSDT"
    with pytest.raises(ModelError, match=r"sim-ETHUSDT/1h.*HF_HUB_OFFLINE"):
        from_hub(REPO, "ETHUSDT", "1h", market="sim")
    with pytest.raises(ModelError, match="HF_HUB_OFFLINE"):
        list_models(REPO)
    assert hub.requests == []


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ((REPO, "SOLUSDT", "1h"), "SOLUSDT/1h.*BTCUSDT/1h, sim-ETHUSDT/1h"),
        ((REPO, "../etc", "1h"), "names no model"),
        ((REPO, "BTCUSDT", "1h", "v9"), "revision 'v9'"),
        (("alice/nothing", "BTCUSDT", "1h"), "alice/nothing.*HF_TOKEN"),
        (("nothing", "BTCUSDT", "1h"), "USER/NAME"),
    ],
)
def test_what_does_not_exist_is_one_sentence(published, asked, told):
    with pytest.raises(ModelError, match=told) as caught:
        from_hub(*asked)
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_token_that_is_refused_is_not_shown(published, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_" + "wrong" * 6)

    with pytest.raises(ModelError, match="401") as caught:
        from_hub(REPO, "BTCUSDT", "1h")

    assert "wrongwrong" not in str(caught.value)


def test_a_password_in_the_endpoint_is_not_shown(published, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", f"http://me:hush@127.0.0.1:{unused_port()}")
    with pytest.raises(ModelError) as caught:
        list_models(REPO)
    assert "hush" not in str(caught.value)


def test_weights_that_are_not_those_of_the_config_are_refused(hub, published):
    files = hub.repos[REPO].files
    swapped = {"BTCUSDT/1h/model.safetensors": files["sim-ETHUSDT/1h/model.safetensors"]}
    hub.repos[REPO].commit(files | swapped)

    with pytest.raises(ModelError, match="sha256"):
        from_hub(REPO, "BTCUSDT", "1h")
    assert from_hub(REPO, "BTCUSDT", "1h", revision=published).config["symbol"] == "BTCUSDT"


def test_without_huggingface_hub_the_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ModelError, match=re.escape(f"{sys.executable} -m pip install -c ")):
        from_hub(REPO, "BTCUSDT", "1h")


def unused_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]
