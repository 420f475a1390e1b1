"""`from_hub`: one model folder alone, checked, from the Hub or from the cache."""

import base64
import re
import socket
import sys
import traceback
from urllib.parse import quote, unquote, urlsplit

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpbmodels import ModelError, from_hub, load
from cpbmodels.hub import commit_of, fetch, hub_of_environment, list_models
from tests.tools.fake_hub import TOKEN, fake_hub
from tests.tools.hub_models import REPO, publish_models, series, trained


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


def said(caplog, capfd):
    """All that was logged, and printed on the terminal."""
    out = capfd.readouterr()
    return "\n".join([caplog.text, out.out, out.err, *(str(record.args) for record in caplog.records)])


USER = "me:hush%2F%40x"
BASIC = f"Basic {base64.b64encode(b'me:hush/@x').decode()}"


def ask_both(monkeypatch, endpoint):
    """The sentences of a listing and of a model, as the endpoint's server answers."""
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", endpoint)  # as at its import
    monkeypatch.setattr(
        "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE",
        f"{endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}",
    )
    for ask in (list_models, lambda repo: from_hub(repo, "BTCUSDT", "1h", revision="v1")):
        with pytest.raises(ModelError) as caught:
            ask(REPO)
        yield "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("path", ["", "/hush/hf"])
@pytest.mark.parametrize("answer", ["nobody", "503", "401"])
def test_what_the_endpoint_carries_is_not_shown(hub, published, monkeypatch, caplog, capfd, path, answer):
    caplog.set_level(1)
    monkeypatch.setattr("time.sleep", lambda _: None)  # between the client's tries
    port = unused_port() if answer == "nobody" else urlsplit(hub.url).port
    if answer == "503":
        hub.faults += [(method, "", 503) for method in ("GET", "HEAD") for _ in range(20)]
    for sentence in ask_both(monkeypatch, f"http://{USER}@127.0.0.1:{port}{path}"):
        assert f"http://127.0.0.1:{port}" in sentence
        assert "hush" not in unquote(sentence)
    assert "hush" not in unquote(said(caplog, capfd)) or path
    assert USER not in said(caplog, capfd)


def test_a_user_and_a_password_in_the_endpoint_still_open_it(hub, published, monkeypatch, caplog, capfd):
    hub.users.add(BASIC)
    monkeypatch.setenv("HF_ENDPOINT", hub.url.replace("//", f"//{USER}@"))
    assert list_models(REPO) == ["BTCUSDT/1h", "sim-ETHUSDT/1h"]
    assert from_hub(REPO, "BTCUSDT", "1h").config["symbol"] == "BTCUSDT"
    hub.users.clear()
    with pytest.raises(ModelError, match="401"):
        list_models(REPO)
    assert "hush" not in unquote(said(caplog, capfd))


MALFORMED = [
    "http://[::1",
    "http://me:hush@host:port",
    "http://me:hu/sh@host",
    "http://me:12/hush@host",
    "http://me:12?hush@host",
    "http://me:12#hush@host",
    "host/hush",
    "ftp://hush@host",
    "http://",
    "http://host:99999",
    "http://ho st/hush",
    "https://host/?token=hush",
    "https://host/#hush",
    "http://host\n/hush",
    "http://h\x1b[2Jost/hush",
    "hush",
    "http://ho*st",
]


@pytest.mark.parametrize("endpoint", MALFORMED)
def test_a_malformed_endpoint_is_one_sentence_that_shows_none_of_it(endpoint, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    for ask in (list_models, lambda repo: from_hub(repo, "BTCUSDT", "1h")):
        with pytest.raises(ModelError, match="HF_ENDPOINT is not the address of a Hub") as caught:
            ask(REPO)
        text = "".join(traceback.format_exception(caught.value))
        assert "hush" not in text
        assert "host" not in str(caught.value)


@given(
    user=st.text(min_size=1, max_size=8),
    password=st.text(max_size=12),
    path=st.sampled_from(["", "/", "/hf", "/a/b/"]),
    port=st.none() | st.integers(1, 65535),
)
def test_any_user_and_password_become_a_header(user, password, path, port):
    address = f"https://host{'' if port is None else f':{port}'}"
    pair = f"{quote(user, safe='')}:{quote(password, safe='')}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_ENDPOINT", f"{address.replace('//', f'//{pair}@')}{path}")
        place = hub_of_environment()
    assert (place.url, place.host) == (f"{address}{path}".rstrip("/"), address)
    kind, _, value = place.headers["authorization"].partition(" ")
    assert (kind, base64.b64decode(value).decode()) == ("Basic", f"{user}:{password}")
    assert "authorization" not in repr(place)


@given(st.text("ab:/@?#[]%&=. 1", max_size=20))
def test_any_endpoint_is_an_address_or_one_sentence(text):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_ENDPOINT", f"http://{text}")
        try:
            place = hub_of_environment()
        except ModelError:
            return
    assert "@" not in place.url


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
