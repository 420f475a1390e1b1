import logging
import socket
import traceback

import pytest

from cpbmodels.errors import ModelError
from cpbmodels.hub import list_models
from schemas.errors import CpbError, UsageError
from schemas.run import RunSpec
from tasks.hub.publish import publish_tree
from tasks.hub.tree import build_tree
from tests.tools.fake_hub import TOKEN, blob_oid
from tests.tools.hub_models import champion

REPO = "alice/cpb-models"


@pytest.fixture
def tree(tmp_path):
    models = [champion(tmp_path / "a"), champion(tmp_path / "b", "ETHUSDT", ratio=1.02, seed=1)]
    return build_tree(models, tmp_path / "tree")


def test_one_commit_holds_every_file(hub, tree):
    done = publish_tree(tree, REPO)

    assert done.sent
    assert done.oid == hub.repos[REPO].head
    assert hub.count("POST", "/commit/main") == 1
    local = {p.relative_to(tree).as_posix(): p.read_bytes() for p in tree.rglob("*") if p.is_file()}
    assert set(hub.repos[REPO].files) - {".gitattributes"} == set(local)
    assert all(hub.content(REPO, path) == data for path, data in local.items())
    kinds = {path: kind for path, (kind, _) in hub.repos[REPO].files.items()}
    assert kinds["BTCUSDT/1h/model.safetensors"] == "lfs"
    assert kinds["README.md"] == "file"


def test_a_private_repository_is_made_private_and_a_public_one_never_taken_for_it(
    hub, tree, monkeypatch, tmp_path
):
    assert publish_tree(tree, REPO, private=True).sent
    assert hub.repos[REPO].private
    assert not publish_tree(tree, REPO, private=True).sent
    assert not publish_tree(tree, REPO).sent

    public = "alice/public"
    publish_tree(tree, public)
    assert not hub.repos[public].private
    (tree / "README.md").write_text("not for everybody")
    with pytest.raises(CpbError) as caught:
        publish_tree(tree, public, private=True)
    assert (caught.value.code, caught.value.field) == ("public", "repo")
    assert f"{public} exists and is public" in str(caught.value)
    assert b"not for everybody" not in hub.blobs.values()
    assert len(hub.repos[public].commits) == 2

    monkeypatch.setenv("HF_TOKEN", "")
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "none"))
    assert list_models(public) == ["BTCUSDT/1h", "ETHUSDT/1h"]
    with pytest.raises(ModelError):  # a stranger
        list_models(REPO)


def test_publishing_twice_sends_no_second_commit(hub, tree):
    first = publish_tree(tree, REPO)
    uploads = hub.count("PUT", "/blob/")

    second = publish_tree(tree, REPO)

    assert not second.sent
    assert second.oid == first.oid
    assert hub.count("POST", "/commit/main") == 1
    assert hub.count("PUT", "/blob/") == uploads


def test_someone_elses_commit_in_between_is_kept(hub, tree):
    publish_other = {"other.txt": ("file", blob_oid(b"theirs"))}
    hub.blobs[blob_oid(b"theirs")] = b"theirs"
    hub.on_preupload.append(lambda repo: repo.commit(repo.files | publish_other))

    publish_tree(tree, REPO, pause=0.01)

    assert hub.count("POST", "/commit/main") == 2
    assert hub.content(REPO, "other.txt") == b"theirs"
    assert "BTCUSDT/1h/config.json" in hub.repos[REPO].files
    assert len(hub.repos[REPO].commits) == 3


@pytest.mark.parametrize("step", ["/repos/create", "/commit/main"])
def test_a_stumbling_hub_is_asked_again(hub, tree, step):
    hub.faults += [("POST", step, 503), ("POST", step, 503)]

    assert publish_tree(tree, REPO, pause=0.01).sent

    assert len(hub.repos[REPO].commits) == 2


def test_a_hub_that_stays_down_changes_nothing(hub, tree):
    hub.faults += [("POST", "/commit/main", 503)] * 3

    with pytest.raises(CpbError, match="answered 503") as caught:
        publish_tree(tree, REPO, attempts=3, pause=0.01)

    assert caught.value.code == "hub-down"
    assert set(hub.repos[REPO].files) == {".gitattributes"}


def test_a_commit_whose_answer_was_lost_is_not_made_twice(hub, tree):
    hub.lose_next_commit_answer = True

    done = publish_tree(tree, REPO, pause=0.01)

    assert done.oid == hub.repos[REPO].head
    assert len(hub.repos[REPO].commits) == 2
    assert hub.count("POST", "/commit/main") == 1


def test_the_token_appears_nowhere(hub, tree, caplog, capsys):
    caplog.set_level(logging.DEBUG)
    publish_tree(tree, REPO)
    hub.faults.append(("GET", "/api/models/", 401))
    with pytest.raises(CpbError) as caught:
        publish_tree(tree, REPO)

    out = capsys.readouterr()
    assert TOKEN not in caplog.text + out.out + out.err + str(caught.value)
    assert caught.value.__cause__ is None
    assert all(TOKEN.encode() not in blob for blob in hub.blobs.values())


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/api/models/", 401), ("POST", "/repos/create", 403), ("POST", "/preupload/", 404)],
)
def test_refusals_are_one_sentence(hub, tree, method, path, status):
    hub.faults.append((method, path, status))

    with pytest.raises(CpbError) as caught:
        publish_tree(tree, REPO)

    assert caught.value.code == f"hub-{status}"
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("token", ["", "   "])
def test_an_empty_token_is_no_token(hub, tree, monkeypatch, tmp_path, token):
    monkeypatch.setenv("HF_TOKEN", token)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "none"))

    with pytest.raises(CpbError) as caught:
        publish_tree(tree, REPO)

    assert caught.value.code == "no-token"
    assert hub.requests == []


def test_a_token_with_a_blank_is_refused_without_showing_it(hub, tree, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", f"{TOKEN} {TOKEN}")

    with pytest.raises(CpbError, match="line breaks") as caught:
        publish_tree(tree, REPO)

    assert TOKEN not in str(caught.value)


def test_an_unreachable_hub_is_one_sentence(tree, monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("HF_TOKEN", TOKEN)

    with pytest.raises(CpbError, match="cannot be reached") as caught:
        publish_tree(tree, REPO)
    assert caught.value.code == "hub-down"


@pytest.mark.parametrize("repo", ["cpb", "a/b/c", "a b/c", "/c", ""])
def test_a_wrong_repository_name_is_a_usage_error(repo):
    with pytest.raises(UsageError, match="repo"):
        RunSpec(repo=repo)


@pytest.mark.parametrize("answer", ["nobody", "503", "403"])
def test_what_the_endpoint_carries_is_not_shown(hub, tree, monkeypatch, caplog, capfd, answer):
    caplog.set_level(1)
    address = hub.url
    if answer == "nobody":
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"http://127.0.0.1:{free.getsockname()[1]}"
    else:
        hub.faults += [("POST", "", int(answer))] * 9
    monkeypatch.setenv("HF_ENDPOINT", f"{address.replace('//', '//me:hush@')}/hush")
    with pytest.raises(CpbError) as caught:
        publish_tree(tree, REPO, attempts=2, pause=0.001)
    assert address in str(caught.value)
    out = capfd.readouterr()
    for text in ("".join(traceback.format_exception(caught.value)), out.out, out.err, caplog.text):
        assert "me:hush" not in text
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    "endpoint", ["http://[::1", "http://me:hu/sh@host", "hush", "https://host/?token=hush"]
)
def test_a_malformed_endpoint_is_one_sentence(tree, monkeypatch, endpoint):
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with pytest.raises(CpbError, match="HF_ENDPOINT is not the address of a Hub") as caught:
        publish_tree(tree, REPO)
    assert (caught.value.code, caught.value.field) == ("hub-endpoint", "HF_ENDPOINT")
    assert "hush" not in "".join(traceback.format_exception(caught.value))


def test_the_card_names_no_user_of_the_endpoint(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "https://me:hush@hub.example/hf/")
    card = (build_tree([champion(tmp_path / "a")], tmp_path / "tree") / "README.md").read_text()
    assert "https://hub.example/hf/USER/NAME/resolve" in card
    assert "hush" not in card
    monkeypatch.setenv("HF_ENDPOINT", "http://me:hu/sh@host")  # which `publish` refuses
    card = (build_tree([champion(tmp_path / "b")], tmp_path / "tree2") / "README.md").read_text()
    assert "https://huggingface.co/USER/NAME/resolve" in card
    assert "sh@host" not in card
