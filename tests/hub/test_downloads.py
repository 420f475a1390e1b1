"""What `docs/publishing.md` tells people to fetch: typed as it stands there, from the Hub on loopback."""

import os
import re
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import HfHubHTTPError

from tasks.hub.publish import publish_tree
from tests.tools.fake_hub import TOKEN
from tests.tools.published_record import verify

REPO = "alice/cpb-models"
DOCS = Path(__file__).parents[2] / "docs" / "publishing.md"


@pytest.fixture
def client(hub, tmp_path):
    """The environment of a stranger: no token, no cache, nothing of this test's process."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return kept | {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_TELEMETRY": "1"}


def typed_in_docs():
    """The `hf download` of the docs, each once, without what follows it on its line."""
    found = re.findall(r"hf download USER/NAME[^`#\n]*", DOCS.read_text())
    return list(dict.fromkeys(command.strip() for command in found))


def type_command(command, cwd, env):
    words = shlex.split(command)
    words[0] = str(Path(sys.executable).with_name("hf"))
    done = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def files_of(folder):
    """The files of a folder by path, without what huggingface_hub keeps there for itself."""
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    return {place: path.read_bytes() for place, path in found.items() if not place.startswith(".")}


def test_a_stranger_fetches_the_folder_as_the_docs_say_and_checks_it(hub, recorded, tmp_path, client):
    tree = recorded / "hub"
    oid = publish_tree(tree, REPO).oid
    commands = typed_in_docs()
    assert [re.sub(r"USER/NAME ", "", command) for command in commands] == [
        "hf download --local-dir copy",
        "hf download --revision COMMIT",
    ]
    for command in commands:
        printed = type_command(
            command.replace("USER/NAME", REPO).replace("COMMIT", oid), cwd=tmp_path, env=client
        )
        folder = Path(next(word for word in printed.split() if Path(tmp_path, word).is_dir()))
        assert files_of(tmp_path / folder) == files_of(tree)
        assert verify(tmp_path / folder) == verify(tree)
    assert (tmp_path / "copy" / "verify.py").is_file()

    # what the docs install from such a folder, where pip could not fetch it: one wheel, with this extra
    (requirement,) = re.findall(r'`pip install "\$\(ls (copy/\S+)\)\[hub\]"`', DOCS.read_text())
    (wheel,) = tmp_path.glob(requirement)
    with zipfile.ZipFile(wheel) as packed:
        (metadata,) = [name for name in packed.namelist() if name.endswith(".dist-info/METADATA")]
        assert "Provides-Extra: hub" in packed.read(metadata).decode()


def test_snapshot_download_has_the_same_files_and_of_a_private_repository_wants_a_token(
    hub, recorded, tmp_path
):
    assert 'huggingface_hub.snapshot_download("USER/NAME")' in DOCS.read_text()
    tree = recorded / "hub"
    publish_tree(tree, REPO, private=True)
    options = {"endpoint": hub.url, "cache_dir": tmp_path / "cache"}
    assert files_of(Path(snapshot_download(REPO, token=TOKEN, **options))) == files_of(tree)
    with pytest.raises(HfHubHTTPError, match="401"):
        snapshot_download(REPO, token=False, endpoint=hub.url, cache_dir=tmp_path / "other")


def test_the_same_folder_becomes_a_data_set_as_the_docs_say(hub, recorded, tmp_path, client):
    tree = recorded / "hub"
    (command,) = re.findall(r"`(hf upload [^`]+)`", DOCS.read_text())
    assert command == "hf upload USER/NAME-record data/hub --repo-type dataset"
    command = command.replace("USER/NAME", REPO).replace("data/hub", str(tree))
    type_command(command, tmp_path, client | {"HF_TOKEN": TOKEN, "HF_HUB_DISABLE_XET": "1"})
    assert hub.count("POST", "/api/datasets/.*/commit/main") == 1
    copy = snapshot_download(
        f"{REPO}-record", repo_type="dataset", endpoint=hub.url, cache_dir=tmp_path / "cache"
    )
    assert files_of(Path(copy)) == files_of(tree)


def test_the_stand_in_lists_a_tree_page_by_page(hub, recorded):
    tree = recorded / "hub"
    publish_tree(tree, REPO)
    api = HfApi(endpoint=hub.url)
    everything = {entry.path for entry in api.list_repo_tree(REPO, recursive=True)}
    assert files_of(tree).keys() <= everything
    assert {"BTCUSDT", "BTCUSDT/1h", "forecasts/interval=1h"} <= everything
    (weights,) = [entry for entry in api.list_repo_tree(REPO, "BTCUSDT/1h") if "safetensors" in entry.path]
    assert weights.size == weights.lfs.size == (tree / weights.path).stat().st_size
    assert hub.count("GET", "/tree/main") > 2
