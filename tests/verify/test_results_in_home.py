"""`results.json` of a home: written by a training, checked by `cpb verify`, never in place of another file."""

import json
import shlex
import subprocess

import pytest

from flows.train_all import run_train_all
from tasks.tracking.champions import champions
from tasks.tracking.store import open_store
from tests.tools.stored_home import DAMAGE, MARKET, only, spec
from tests.tools.verifying import of_kind

verify_results = of_kind("results")


def models(path):
    return json.loads(path.read_text())["models"]


def train_again(home):
    said = []
    summary = run_train_all(spec(), said.append)
    return summary, said


def test_every_judged_model_has_a_row_and_the_same_run_again_writes_the_same_bytes(stored):
    path, published = stored / MARKET / "results.json", stored / MARKET / "hub/results.json"
    found = {(row["symbol"], row["architecture"]): row for row in models(path)}
    assert {*found} == {(coin, name) for coin in ("BTCUSDT", "ETHUSDT") for name in ("linear", "robust-har")}
    registered = {c.model_version: c for c in champions(open_store(), market=MARKET)}
    assert {row["version"] for row in found.values()} == {None, *registered}
    for row in found.values():
        assert row["train_seconds"] > 0
        assert row["rss_peak_mb"] > 0
        assert row["epochs_run"] > 0
        assert row["trained_at"] > "2026"
        assert row["trained_from"] < row["trained_until"] < row["tested_from"] < row["tested_until"]
        assert f"CRPS ratio {row['crps_ratio']:.4f} [{row['crps_ratio_low']:.4f}" in row["verdict"]

    # A champion's row is the same in both files; the published scores are those of its version.
    assert models(published) == [row for row in models(path) if row["version"]]

    before = path.read_bytes(), published.read_bytes()
    summary, said = train_again(stored)
    assert (path.read_bytes(), published.read_bytes()) == before
    assert summary.results == str(path)
    assert f"results of 4 models in {path}" in said
    assert verify_results(stored, MARKET) == []


def test_another_preset_leaves_the_rows_of_the_first(stored):
    path = stored / MARKET / "results.json"
    first = models(path)
    more = spec().model_copy(update={"overrides": {"epochs": 1}, "architectures": "linear"})
    run_train_all(more, lambda _: None)
    found = models(path)
    assert [row for row in found if row["preset"] == "smoke"] == first
    assert [row["architecture"] for row in found if row["preset"] != "smoke"] == ["linear", "linear"]


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_named_and_the_command_makes_way_for_a_new_one(stored, damage):
    path = stored / MARKET / "results.json"
    whole = path.read_bytes()
    damage(path)
    spoiled = path.read_bytes()

    found = only(verify_results(stored, MARKET))
    assert (found.path, found.reason) == (f"{MARKET}/results.json", "it is not as cpb wrote it")
    summary, said = train_again(stored)
    assert path.read_bytes() == spoiled
    (failure,) = summary.failures
    assert (failure.code, summary.exit_code) == ("foreign-file", 3)
    assert (summary.champions, summary.forecast_rows) == (2, 20)  # all else is kept
    assert f"FAILED {failure.line}" in said
    assert failure.line.startswith(
        f"the run in evaluate: {path} is not replaced, since it is not as cpb wrote it"
    )

    subprocess.run(shlex.split(found.command), check=True)
    assert verify_results(stored, MARKET) == []
    assert not train_again(stored)[0].failures
    assert path.read_bytes() == whole
    assert path.with_name("results.json.aside").read_bytes() == spoiled
