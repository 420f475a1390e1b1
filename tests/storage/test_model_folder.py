import json
import math

import numpy as np
import pytest
from safetensors.numpy import save_file

from schemas.errors import DamagedError
from tasks.storage.model_folder import (
    damage_of,
    file_digests,
    read_config,
    write_metrics,
    write_published_config,
)


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "model"
    made.mkdir()
    save_file(
        {"w": np.arange(64, dtype=np.float32), "b": np.zeros(3, np.float32)}, made / "model.safetensors"
    )
    config = {"zeta": [1, 2], "architecture": "har", "rows": 500, "hidden": {"lr": 1e-3}, "loss": math.nan}
    (made / "config.json").write_text(json.dumps(config, indent=2))
    return made


def cut(path, share):
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])


def test_a_config_keeps_the_fields_that_cpb_does_not_read(folder):
    config = read_config(folder)

    assert (config.architecture, config.rows, config.warm_start) == ("har", 500, None)
    assert config.model_dump()["hidden"] == {"lr": 1e-3}


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"rows": 3}', '{"architecture": "har", "rows": "many"}', "\x00" * 50]
)
def test_a_broken_config_is_one_sentence(folder, content):
    (folder / "config.json").write_text(content)

    with pytest.raises(DamagedError) as caught:
        read_config(folder)

    assert (caught.value.code, caught.value.field) == ("damaged", str(folder))
    assert "\n" not in str(caught.value)


def test_a_missing_config_is_damage(folder):
    (folder / "config.json").unlink()
    with pytest.raises(DamagedError):
        read_config(folder)


def test_metrics_are_added_and_nothing_else_moves(folder):
    write_metrics(folder, {"test_crps_ratio": 0.98}, "better")

    values = json.loads((folder / "config.json").read_text())
    assert list(values) == ["zeta", "architecture", "rows", "hidden", "loss", "metrics"]
    assert values["metrics"] == {"test_crps_ratio": 0.98}
    assert json.loads((folder / "metrics.json").read_text()) == {"test_crps_ratio": 0.98, "verdict": "better"}
    before = (folder / "config.json").stat().st_mtime_ns
    write_metrics(folder, {"test_crps_ratio": 0.98}, "better")
    assert (folder / "config.json").stat().st_mtime_ns == before


def test_a_published_config_names_no_folder(folder, tmp_path):
    target = tmp_path / "public"
    target.mkdir()
    write_published_config(folder, target)
    assert (target / "config.json").read_bytes() == (folder / "config.json").read_bytes()

    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | {"warm_start": "/home/me/models"}))
    write_published_config(folder, target)
    assert json.loads((target / "config.json").read_text())["warm_start"] == "champion"


def test_an_intact_folder_has_no_damage(folder):
    assert damage_of(folder, file_digests(folder)) == ""
    assert damage_of(folder, {}) == ""


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_one_changed_bit_is_damage_where_a_digest_is_known(folder, name):
    digests = file_digests(folder)
    data = bytearray((folder / name).read_bytes())
    data[-7] ^= 1
    (folder / name).write_bytes(data)

    assert name in damage_of(folder, digests)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.5, 0.99])
def test_cut_weights_are_damage_without_a_digest_too(folder, share):
    cut(folder / "model.safetensors", share)
    assert "model.safetensors" in damage_of(folder, {})


def test_random_bytes_are_no_weights(folder):
    (folder / "model.safetensors").write_bytes(np.random.default_rng(1).bytes(2000))
    assert damage_of(folder, {}) != ""


def test_a_broken_config_is_damage_without_a_digest_too(folder):
    cut(folder / "config.json", 0.5)
    assert "config.json" in damage_of(folder, {})
