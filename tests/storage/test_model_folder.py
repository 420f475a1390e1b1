import json
import math
from contextlib import suppress
from hashlib import sha256
from threading import Thread

import numpy as np
import pytest
from safetensors.numpy import save_file

from cpbmodels.fleet.config import CONFIG, DIGEST, WEIGHTS, digest
from schemas.errors import DamagedError
from tasks.storage import model_folder
from tasks.storage.model_folder import (
    METRICS,
    damage_of,
    file_digests,
    read_config,
    write_metrics,
    write_published_config,
)
from tasks.storage.sealed import check_sealed, resealing, seal, sealed_files


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "model"
    made.mkdir()
    save_file(
        {"w": np.arange(64, dtype=np.float32), "b": np.zeros(3, np.float32)}, made / "model.safetensors"
    )
    loss = {"train_loss": math.nan}
    config = {"versions": {"torch": "2"}, "architecture": "har", "rows": 500, "lr": 1e-3, "history": [loss]}
    (made / "config.json").write_text(json.dumps(config, indent=2))
    seal(tmp_path)
    return made


def cut(path, share):
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])


def test_a_config_keeps_the_fields_that_cpb_does_not_read(folder):
    config = read_config(folder)

    assert (config.architecture, config.rows) == ("har", 500)
    assert config.model_dump()["lr"] == 1e-3


@pytest.mark.parametrize(
    "content",
    [
        None,
        "{",
        '{"rows": 3}',
        '{"architecture": "har", "rows": "many"}',
        '{"architecture": "har", "context": 1000000000}',
        '{"architecture": "har", "format": 4}',
        "[" * 100_000,
    ],
)
def test_a_broken_config_is_one_sentence(folder, content):
    (folder / "config.json").unlink()
    if content is not None:
        (folder / "config.json").write_text(content)

    with pytest.raises(DamagedError) as caught:
        read_config(folder)

    assert (caught.value.code, caught.value.field) == ("damaged", str(folder))
    assert "\n" not in str(caught.value)


def test_metrics_are_added_and_nothing_else_moves(folder):
    write_metrics(folder.parent, {"test_crps_ratio": 0.98}, "better")

    values = json.loads((folder / "config.json").read_text())
    assert list(values) == ["versions", "architecture", "rows", "lr", "history", "metrics"]
    assert values["metrics"] == {"test_crps_ratio": 0.98}
    assert json.loads((folder / "metrics.json").read_text()) == {"test_crps_ratio": 0.98, "verdict": "better"}
    before = (folder / "config.json").stat().st_mtime_ns
    write_metrics(folder.parent, {"test_crps_ratio": 0.98}, "better")
    assert (folder / "config.json").stat().st_mtime_ns == before
    check_sealed(folder.parent)


def test_scores_whose_seal_a_kill_prevented_are_sealed_by_the_same_call(folder):
    write_metrics(folder.parent, {"test_crps_ratio": 0.98}, "better")
    with suppress(KeyboardInterrupt), resealing(folder.parent, "model/config.json", "model/metrics.json"):
        raise KeyboardInterrupt
    assert sealed_files(folder.parent).keys() == {"model/model.safetensors"}
    write_metrics(folder.parent, {"test_crps_ratio": 0.98}, "better")
    names = {"model.safetensors", "config.json", "metrics.json"}
    assert sealed_files(folder.parent).keys() == {f"model/{name}" for name in names}


def test_a_published_config_holds_the_digests_of_its_files(folder, tmp_path):
    target = tmp_path / "public"
    target.mkdir()
    write_published_config(folder, target, "cpb-BTCUSDT-1h/3", "better")
    values = json.loads((folder / "config.json").read_text())
    published = json.loads((target / "config.json").read_text())
    assert published.pop(DIGEST) == digest(published)
    assert (published.pop("model_version"), published.pop("verdict")) == ("cpb-BTCUSDT-1h/3", "better")
    assert published.pop("weights_sha256") == sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert str(published) == str(values)  # as texts: one field is NaN


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


def test_a_broken_config_is_damage_without_a_digest_too(folder):
    cut(folder / "config.json", 0.5)
    assert "config.json" in damage_of(folder, {})


def test_of_two_commands_that_write_the_same_scores_the_second_touches_no_file(tmp_path, monkeypatch):
    """The first reads the seal next, for the digests that MLflow keeps: no file may be missing from it meanwhile."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / CONFIG).write_text('{"architecture": "gru"}')
    seal(tmp_path)
    write, entered, written = model_folder.write_json, model_folder.resealing, []
    monkeypatch.setattr(
        model_folder, "write_json", lambda *what: (written.append(what[0].name), write(*what))
    )
    other = Thread(target=write_metrics, args=(tmp_path, {"test_n": 3.0}, "better"))

    def both_have_decided(*names):
        monkeypatch.setattr(model_folder, "resealing", entered)
        other.start()
        other.join(0.5)
        return entered(*names)

    monkeypatch.setattr(model_folder, "resealing", both_have_decided)
    write_metrics(tmp_path, {"test_n": 3.0}, "better")
    other.join()
    assert sorted(written) == [CONFIG, METRICS]
    assert sealed_files(tmp_path).keys() == {f"model/{CONFIG}", f"model/{METRICS}"}


@pytest.mark.parametrize(("name", "knows"), [("extremes.first", True), ("touch.table", False)])
def test_a_table_of_before_does_not_know_what_is_first(tmp_path, name, knows):
    assert not model_folder.knows_first(tmp_path)
    (tmp_path / WEIGHTS).write_bytes(b"{")
    assert not model_folder.knows_first(tmp_path)
    save_file({name: np.zeros((2, 2), np.float16)}, tmp_path / WEIGHTS)
    assert model_folder.knows_first(tmp_path) is knows
