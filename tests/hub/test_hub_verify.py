"""`cpb verify` looks at the folder that people load models from."""

import pytest
from hub_models import trained
from verifying import verify_published as verify

from schemas.identity import tree_of
from tasks.hub.tree import build_tree


@pytest.mark.parametrize("market", ["spot", "sim"])
@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_damaged_model_is_named_with_the_command_that_makes_it_again(tmp_path, market, name):
    good, other = trained(tmp_path / "a", market=market), trained(tmp_path / "b", "ETHUSDT", market=market)
    tree = build_tree([good, other], tree_of(tmp_path, "hub", market))
    assert list(verify(tmp_path, market)) == []
    (path,) = tree.glob(f"*ETHUSDT/1h/{name}")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1 if name.endswith("tensors") else 0x80
    path.write_bytes(data)
    (damage,) = verify(tmp_path, market)
    assert damage.path.endswith(f"ETHUSDT/1h/{name}")
    assert damage.command.startswith("cpb publish --dry-run")
    build_tree([good, other], tree)  # what that command does
    assert list(verify(tmp_path, market)) == []


def test_nothing_published_is_nothing_wrong(tmp_path):
    assert list(verify(tmp_path, "spot")) == []
