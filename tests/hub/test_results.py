"""`results.json`: a row per model, in the home and in the published folder."""

import json
import math
import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpbmodels import preset
from schemas.errors import CpbError, DamagedError
from schemas.fleets import FleetSpec
from schemas.handover import FleetJudgement, Judgement, SeriesRecord
from schemas.identity import ModelId, SeriesId
from tasks.hub.tree import SUMS, build_tree, read_sums, tree_faults
from tasks.storage.recipes import options_read
from tasks.tracking import results
from tasks.tracking.results import FIELDS, results_fault, results_path, write_results
from tests.tools.hub_models import champion

CONFIG = {
    "architecture": "gru",
    "scope": "universal",
    "preset": "seed-gru",
    "recipe": "seed-gru+0a1b2c3d",
    "seed": 7,
    "market": "spot",
    "symbol": "BTCUSDT",
    "timeframe": "1h",
    "context": 30,
    "horizon": 10,
    "hidden_dim": 128,
    "n_layers": 2,
    "n_heads": 8,
    "ff_dim": 512,
    "dropout": 0.3,
    "head": "point",
    "loss": "nll",
    "optimizer": "adam",
    "lr": 0.001,
    "weight_decay": 0.0,
    "schedule": "constant",
    "batch_size": 64,
    "accumulate": 1,
    "epochs": 100,
    "patience": 15,
    "dtype": "float32",
    "mixed_precision": "bf16",
    "features": ["r_open", "r_close"],
    "data_digest": "d" * 40,
    "weights_sha256": "a" * 64,
    "clip": 1.0,
    "training_span": ["2024-01-01T05:00:00.000000Z", "2024-12-01T10:00:00.000000Z"],
    "bounds": {"timeframe": "1h", "test": ["2025-01-01T00:00:00Z", "2025-06-01T02:00:00+02:00"]},
    "report": {
        "trained_at": "2026-11-29T04:19:33+00:00",
        "train_seconds": 12.5,
        "fleet_members": 40,
        "windows_per_s": 4000.0,
        "epochs_run": 31,
        "best_epoch": 16,
        "stopped": "early_stop",
        "device": "cuda:0",
        "rss_peak_mb": 900.0,
        "gpu_mem_allocated_peak_mb": 2340.0,
        "gpu_mem_reserved_peak_mb": 3890.0,
        "kernels": "on",
    },
}
SCORES = {
    "test_crps_ratio": 0.98,
    "test_crps_ratio_low": 0.97,
    "test_crps_ratio_high": 0.99,
    "test_mase": math.nan,
    "validation_crps_ratio": 0.985,
    "windows_per_s": 4000.0,
}
EXPECTED = {
    "market": "spot",
    "symbol": "BTCUSDT",
    "timeframe": "1h",
    "architecture": "gru-universal",
    "preset": "seed-gru+0a1b2c3d",
    "overrides": {"lr": 0.001},
    "copies": 2,
    "recipe": "gru-universal/seed-gru/…",
    "seed": 7,
    "version": "cpb-BTCUSDT-1h/3",
    "run_id": "run",
    "verdict": "better than the random walk",
    "crps_ratio": 0.98,
    "crps_ratio_low": 0.97,
    "crps_ratio_high": 0.99,
    "scores": {
        "test_crps_ratio": 0.98,
        "test_crps_ratio_high": 0.99,
        "test_crps_ratio_low": 0.97,
        "test_mase": None,
        "validation_crps_ratio": 0.985,
    },
    "trained_from": "2024-01-01T05:00:00Z",
    "trained_until": "2024-12-01T10:00:00Z",
    "tested_from": "2025-01-01T00:00:00Z",
    "tested_until": "2025-06-01T00:00:00Z",
    "trained_at": "2026-11-29T04:19:33Z",
    "train_seconds": 12.5,
    "fleet_members": 40,
    "windows_per_s": 4000.0,
    "epochs_run": 31,
    "best_epoch": 16,
    "stopped": "early_stop",
    "device": "cuda:0",
    "gpu_mem_allocated_peak_mb": 2340.0,
    "gpu_mem_reserved_peak_mb": 3890.0,
    "rss_peak_mb": 900.0,
    "options": {
        "context": 30,
        "horizon": 10,
        "dtype": "float32",
        "features": ["r_open", "r_close"],
        "hidden_dim": 128,
        "n_layers": 2,
        "dropout": 0.3,
        "head": "point",
        "loss": "nll",
        "optimizer": "adam",
        "lr": 0.001,
        "weight_decay": 0.0,
        "schedule": "constant",
        "batch_size": 64,
        "accumulate": 1,
        "epochs": 100,
        "patience": 15,
        "mixed_precision": "bf16",
    },
    "data_digest": "d" * 40,
    "weights_sha256": "a" * 64,
}
FLEET = FleetSpec(architecture="gru-universal", preset="seed-gru", overrides={"lr": 0.001}, seeds=2)


@pytest.fixture(autouse=True)
def registry(monkeypatch):
    """A registry in which the run `run` is version 3 of BTC's model."""
    versions = [SimpleNamespace(name="cpb-BTCUSDT-1h", version=3, run_id="run")]
    monkeypatch.setattr(results, "all_versions", lambda store: versions)


def judged(folder, run_id="run", metrics=SCORES, series=SeriesId("spot", "BTCUSDT", "1h"), **changes):
    """A fleet of one judged model, whose `config.json` has these changes."""
    config = (
        CONFIG | {"market": series.market, "symbol": series.symbol, "timeframe": series.timeframe} | changes
    )
    (folder / "model").mkdir(parents=True, exist_ok=True)
    (folder / "model/config.json").write_text(json.dumps(config))
    model = ModelId("gru-universal", config["recipe"], series, config["seed"])
    features = SeriesRecord(
        series=series, path="x", digest="d", file_digest="f", rows=1, first_us=0, last_us=1
    )
    judgement = Judgement(
        model=model,
        folder=folder,
        features=features,
        run_id=run_id,
        metrics=dict(metrics),
        verdict="better than the random walk",
        fleet=FLEET,
    )
    return FleetJudgement(key="k", architecture="gru-universal", run_id="fleet", judgements=(judgement,))


def rows(path):
    content = json.loads(path.read_text())
    assert (content["version"], [*content]) == (1, ["version", "market", "models", "digest"])
    return content["models"]


def test_a_row_has_every_field_as_plain_json(tmp_path):
    path, number = write_results(tmp_path, "spot", None, [judged(tmp_path / "a")])

    assert (path, number) == (tmp_path / "results.json", 1)
    (row,) = rows(path)
    assert row["recipe"].startswith("gru-universal/seed-gru/")
    assert row | {"recipe": EXPECTED["recipe"]} == EXPECTED
    assert [*row] == [*FIELDS]
    assert "NaN" not in path.read_text()


def test_the_options_are_those_with_which_the_model_was_trained(tmp_path):
    own = preset("smoke", "gru", hidden_dim=64).as_dict()
    parts = [own | {"architecture": name, "seed": 7} for name in ("gru", "linear", "robust-har", "walk")]
    parts[1] |= {"lr": 0.02, "hidden_dim": 16}
    parts[3] |= {"location_share": 0.5}
    average = judged(tmp_path / "a", architecture="average", parts=parts)
    closed = judged(tmp_path / "b", architecture="robust-har", seed=8)
    path, _ = write_results(tmp_path, "spot", None, [average, closed])

    of_average, of_closed = (row["options"] for row in rows(path))
    # hidden_dim is read by gru alone, and robust-har is solved without learning rate
    assert (of_average["hidden_dim"], of_average["lr"], of_average["patience"]) == (64, [own["lr"], 0.02], 3)
    assert of_average["context"] == 30
    assert of_average["location_share"] == 0.5  # of the walk alone
    assert {"lr", "epochs", "batch_size", "hidden_dim", "n_heads"}.isdisjoint(of_closed)
    assert options_read({"architecture": "another-program's", "lr": 1, "x": 2}, ("lr", "x")) == {
        "lr": 1,
        "x": 2,
    }


def test_a_field_that_is_not_known_is_null(tmp_path):
    """As of a model that a person registered, and of memory on a CPU; a classifier has no CRPS."""
    cpu = CONFIG["report"] | {"gpu_mem_allocated_peak_mb": 0.0, "gpu_mem_reserved_peak_mb": 0.0}
    path, _ = write_results(
        tmp_path,
        "spot",
        None,
        [
            judged(tmp_path / "a", report={}, training_span=[], bounds={}, run_id="other"),
            judged(tmp_path / "b", report=cpu, seed=8, metrics=SCORES | {"test_accuracy": 0.5}),
        ],
    )

    bare, classifier = rows(path)
    unknown = {name for name, value in bare.items() if value is None}
    times = {"trained_from", "trained_until", "tested_from", "tested_until", "trained_at"}
    assert unknown == {"version", *CONFIG["report"], *times} - {"kernels"}
    assert classifier["gpu_mem_allocated_peak_mb"] is classifier["gpu_mem_reserved_peak_mb"] is None
    assert classifier["crps_ratio"] is classifier["crps_ratio_low"] is classifier["crps_ratio_high"] is None
    assert classifier["scores"]["test_rps_ratio"] == 0.98


def test_runs_one_after_another_leave_the_models_of_all_and_a_model_once(tmp_path):
    """Two presets of one architecture, and seeds, are models of their own; a training anew replaces its model's row."""
    for recipe, seed in (("seed-gru", 7), ("default", 7), ("seed-gru", 8)):
        write_results(tmp_path, "spot", None, [judged(tmp_path / "m", recipe=recipe, seed=seed)])
    path, number = write_results(
        tmp_path,
        "spot",
        None,
        [judged(tmp_path / "m", recipe="default", metrics=SCORES | {"test_crps_ratio": 0.5})],
    )

    found = [(row["preset"], row["seed"], row["crps_ratio"]) for row in rows(path)]
    assert found == [("default", 7, 0.5), ("seed-gru", 7, 0.98), ("seed-gru", 8, 0.98)]
    assert number == 3


def test_a_model_that_was_made_champion_since_has_its_version(tmp_path, monkeypatch):
    """As by a gate or by hand; a model that a person registered under another name is no version of ours."""
    write_results(tmp_path, "spot", None, [judged(tmp_path / "a", run_id="late", seed=1)])
    versions = [("cpb-BTCUSDT-1h", 4, "late"), ("mine", 1, "late"), ("cpb-ETHUSDT-1h", 2, "run")]
    monkeypatch.setattr(
        results,
        "all_versions",
        lambda _: [SimpleNamespace(name=n, version=v, run_id=r) for n, v, r in versions],
    )
    path, _ = write_results(tmp_path, "spot", None, [judged(tmp_path / "b")])
    assert [(row["seed"], row["version"]) for row in rows(path)] == [(1, "cpb-BTCUSDT-1h/4"), (7, None)]
    monkeypatch.setattr(results, "all_versions", lambda _: [])  # pruned
    write_results(tmp_path, "spot", None, [])
    assert [(row["seed"], row["version"]) for row in rows(path)] == [(1, None), (7, None)]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(("BTCUSDT", "ETHUSDT")), st.sampled_from(("15m", "1h", "1d")), st.integers(0, 9)
        ),
        unique=True,
        max_size=6,
    ),
    st.randoms(),
)
@settings(max_examples=25)  # each writes and reads up to 14 files
def test_the_bytes_do_not_depend_on_the_order_or_the_number_of_runs(tmp_path_factory, models, order):
    home = tmp_path_factory.mktemp("home")
    fleets = [
        judged(home / f"m{n}", series=SeriesId("spot", symbol, timeframe), seed=seed)
        for n, (symbol, timeframe, seed) in enumerate(models)
    ]
    path, number = write_results(home, "spot", None, fleets)
    once = path.read_bytes()
    assert number == len(models)

    write_results(home, "spot", None, order.sample(fleets, len(fleets)))
    assert path.read_bytes() == once
    path.unlink()
    for fleet in order.sample(fleets, len(fleets)):
        write_results(home, "spot", None, [fleet])
    assert not models or path.read_bytes() == once
    seconds = [{"15m": 1, "1h": 2, "1d": 3}[row["timeframe"]] for row in json.loads(once)["models"]]
    assert seconds == sorted(seconds)


@pytest.mark.parametrize(
    ("market", "place"),
    [
        ("spot", "results.json"),
        ("um", "results-um.json"),
        ("sim", "sim/results.json"),
        ("own", "own/results.json"),
    ],
)
def test_each_market_has_its_own_file(tmp_path, market, place):
    assert results_path(tmp_path, market) == tmp_path / place


OTHERS = {
    "of a person": b'{"BTC": 0.5}',
    "a list": b"[1, 2]",
    "no JSON": b"my notes",
    "no text": b"\xff\xfe\x00",
    "too deep": b"[" * 100_000,
    "empty": b"",
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_a_file_that_is_not_as_cpb_wrote_it_stays(tmp_path, other):
    path = tmp_path / "results.json"
    path.write_bytes(other)

    with pytest.raises(DamagedError, match="move it elsewhere, then run the same command again") as caught:
        write_results(tmp_path, "spot", None, [judged(tmp_path / "a")])

    assert (caught.value.code, caught.value.field) == ("foreign-file", str(path))
    assert path.read_bytes() == other
    assert results_fault(path) == "it is not as cpb wrote it"


def test_a_changed_figure_another_version_and_a_folder_are_named(tmp_path):
    path, _ = write_results(tmp_path, "spot", None, [judged(tmp_path / "a")])
    whole = path.read_text()
    assert results_fault(path) == ""

    for other in ("0.90", "0.980"):  # another figure, and another text of the same
        path.write_text(whole.replace("0.98", other, 1))
        assert results_fault(path) == "it is not as cpb wrote it"
    path.unlink()
    assert results_fault(path) == ""
    path.mkdir()
    assert results_fault(path).startswith("it cannot be read (")
    path.rmdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(results, "VERSION", 2)
        write_results(tmp_path, "spot", None, [judged(tmp_path / "a")])
    assert results_fault(path) == "its version is 2, and this cpb reads version 1"


def published(folder):
    return json.loads((folder / "results.json").read_text())["models"]


def test_the_published_folder_has_a_row_per_champion_and_stays_the_same(tmp_path):
    models = [champion(tmp_path / "a", ratio=0.97), champion(tmp_path / "b", "ETHUSDT", "15m", market="spot")]
    (models[0].folder / "config.json").write_text(json.dumps(CONFIG))
    tree = build_tree(models, tmp_path / "tree")

    eth, btc = published(tree)
    assert (eth["symbol"], eth["timeframe"], eth["version"]) == ("ETHUSDT", "15m", "cpb-ETHUSDT-15m/3")
    assert (btc["architecture"], btc["version"], btc["verdict"], btc["crps_ratio"], btc["epochs_run"]) == (
        "gru-universal",
        "cpb-BTCUSDT-1h/3",
        "better (x)",
        0.97,
        31,
    )
    assert "results.json" in read_sums(tree)
    assert set(tree_faults(tree).values()) == {""}
    before = (tree / "results.json").read_bytes(), (tree / SUMS).read_bytes()
    random.shuffle(models)
    build_tree(models, tree)
    assert ((tree / "results.json").read_bytes(), (tree / SUMS).read_bytes()) == before


@pytest.mark.parametrize("without_sums", [False, True])
def test_a_published_folder_of_before_is_replaced_unless_it_holds_a_file_of_the_users(tmp_path, without_sums):
    models = [champion(tmp_path / "a")]
    tree = build_tree(models, tmp_path / "tree")
    mine, sums = tree / "results.json", tree / SUMS
    ours = mine.read_bytes()
    mine.unlink()
    sums.write_text("".join(line for line in sums.open() if "results.json" not in line))
    build_tree(models, tree)
    assert mine.read_bytes() == ours

    if without_sums:
        sums.unlink()
        build_tree(models, tree)  # its own digest says whose it is
        sums.unlink()
    else:
        sums.write_text("".join(line for line in sums.open() if "results.json" not in line))
    mine.write_text('{"mine": 1}')
    with pytest.raises(CpbError) as caught:
        build_tree(models, tree)
    assert (caught.value.code, mine.read_text()) == ("foreign-folder", '{"mine": 1}')
    assert str(mine) in str(caught.value)


@pytest.mark.parametrize("noted", ["", "no JSON", "[1]"])
def test_a_version_registered_by_a_person_is_published_too(tmp_path, noted):
    tags = {"cpb.fleet": noted} if noted else {}
    model = replace(champion(tmp_path / "a"), tags=tags, metrics={}, run_id="")
    (row,) = published(build_tree([model], tmp_path / "tree"))
    assert (row["symbol"], row["version"], row["crps_ratio"], row["scores"], row["overrides"]) == (
        "BTCUSDT",
        "cpb-BTCUSDT-1h/3",
        None,
        {},
        None,
    )


def test_the_reference_describes_every_field():
    page = (Path(__file__).parents[2] / "docs/reference.md").read_text()
    _, section = page.split("## Rows of results.json\n")
    lines = [line for line in section.split("\n## ")[0].splitlines() if line.startswith("| `")]
    assert lines == [f"| `{name}` | {meaning} |" for name, meaning in FIELDS.items()]
