"""Shards, their keys and their members' seeds follow from what is trained alone: not from order, place or others."""

import random
import zlib

import pytest

from schemas.fleets import is_universal
from schemas.identity import SeriesId
from schemas.run import RunSpec
from tasks.training.checkpoint import progress_so_far
from tasks.training.plan import (
    MAX_MEMBERS,
    cut,
    job_key,
    member_seed,
    plan_job,
    preset_label,
    shard_seconds,
    shards_of,
)
from tasks.training.shard import home_of, prepare, read_job, shard_folder
from tests.tools.planned import fleet, job, planned, universe


def names(plan):
    return [[m.name for m in shard.members] for shard in plan.shards]


@pytest.mark.parametrize(
    ("architecture", "options", "cpu", "gpu"),
    [
        ("gru", {"preset": "smoke"}, 128, 128),
        ("robust-har", {"preset": "default"}, 128, 128),
        ("har", {"preset": "default"}, 8, 14),
        ("har", {"preset": "default", "seeds": 1}, 32, 40),
        ("gru", {"preset": "seed-gru"}, 4, 40),
        ("lstm", {"preset": "seed-lstm"}, 4, 40),
        ("lstm", {"preset": "seed-lstm", "profile": "gpu-80gb"}, 4, 160),
        ("lstm", {"preset": "seed-lstm", "profile": "gpu-6gb"}, 4, 20),
        ("lstm", {"preset": "seed-lstm", "seeds": 3}, 4, 14),
        ("gru", {"preset": "seed-gru", "overrides": {"hidden_dim": 16, "epochs": 10}}, 128, 128),
    ],
)
def test_sizes_of_the_presets(architecture, options, cpu, gpu):
    members = universe(160, architecture=architecture)
    for size, on_gpus in ((cpu, False), (gpu, True)):
        sizes = [len(shard.members) for shard in fleet(members, architecture, gpu=on_gpus, **options).shards]
        assert len(sizes) == -(-320 // size)
        assert max(sizes) - min(sizes) <= 1


def test_a_shard_is_the_same_job_as_a_plan_of_its_members_alone():
    """What is left of a fleet, or lies on another machine, is planned to the same keys, bits and folders."""
    members, spec = universe(), RunSpec(preset="seed-gru")
    whole = fleet(members, preset="seed-gru")
    assert fleet(random.sample(members, len(members)), preset="seed-gru") == whole  # in whatever order
    for shard in whole.shards:
        assert plan_job(spec, spec.fleets[0], shard.members) == shard
        assert [job_key(again) for again in fleet(shard.members, preset="seed-gru").shards] == [
            job_key(shard)
        ]


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5, 7, 8, 40, 41, 81, 127, 128, 129, 300])
@pytest.mark.parametrize("size", [4, 32, MAX_MEMBERS])
def test_shards_hold_every_member_once_and_are_as_equal_as_can_be(number, size):
    members = universe(number, ("1h",))
    shards = cut(members, size)
    assert [m.name for shard in shards for m in shard] == sorted(m.name for m in members)
    sizes = [len(shard) for shard in shards]
    assert len(sizes) == -(-number // size)
    assert max(sizes) <= size
    assert max(sizes) - min(sizes) <= 1


def test_a_universal_model_is_a_shard_for_each_timeframe_and_fold():
    members = [
        planned(c, t, fold, "har-universal")
        for fold in (1, 2)
        for t in ("1h", "15m")
        for c in ("AUSDT", "BUSDT")
    ]
    assert names(fleet(members, "har-universal", preset="default")) == [
        ["AUSDT-15m-fold-1", "BUSDT-15m-fold-1"],
        ["AUSDT-1h-fold-1", "BUSDT-1h-fold-1"],
        ["AUSDT-15m-fold-2", "BUSDT-15m-fold-2"],
        ["AUSDT-1h-fold-2", "BUSDT-1h-fold-2"],
    ]


def test_the_dearest_shards_are_queued_first():
    cheap = fleet(universe(), "har", preset="default")
    dear = fleet(universe(), "lstm", preset="seed-lstm")
    queue = shards_of([cheap, dear])
    assert [s.architecture for s in queue] == ["lstm"] * len(dear.shards) + ["har"] * len(cheap.shards)
    assert [shard_seconds(s) for s in queue] == sorted(map(shard_seconds, queue), reverse=True)


def test_the_key_names_the_result_not_the_place():
    base = job()
    assert job_key(job(planned(path="elsewhere/b.parquet"))) == job_key(base)
    others = [
        job(architecture="lstm"),
        job(overrides={"batch_size": 8}),
        job(dtype="float64"),
        job(seeds=2),
        job(planned(digest="e")),
        job(planned(market="um")),
        job(planned(fold=1)),
        job(planned(), planned("ETHUSDT")),
    ]
    assert len({job_key(other) for other in [base, *others]}) == len(others) + 1


def test_a_job_is_read_back_from_the_fleets_folder(tmp_path):
    for market, root in (("spot", tmp_path), ("sim", tmp_path / "sim")):
        shard = job(planned(market=market), architecture="har-universal", overrides={"batch_size": 8})
        folder = prepare(root, shard)
        assert folder == shard_folder(root, shard)
        assert read_job(folder) == shard
        assert home_of(folder, shard) == tmp_path.resolve()
        assert is_universal(shard.architecture)
        assert progress_so_far(folder) == ""


def test_a_members_seed_depends_on_nobody_else_and_spot_keeps_its_own():
    series = [
        SeriesId(m, s, t) for m in ("spot", "um") for s in ("BTCUSDT", "ETHUSDT") for t in ("1h", "15m")
    ]
    seeds = {member_seed(1, a, s, fold) for a in ("gru", "har") for s in series for fold in (0, 1, 2)}
    assert len(seeds) == 2 * 8 * 3
    assert member_seed(1, "gru", series[0]) == zlib.crc32(b"1/gru/BTCUSDT/1h")
    assert member_seed(1, "gru", series[0], 2) == zlib.crc32(b"1/gru/BTCUSDT/1h/1")


def test_a_recipe_is_the_preset_and_what_was_changed_in_it():
    plain, *changed = (
        preset_label(RunSpec(preset="smoke", architectures="gru", **options).fleets[0])
        for options in (
            {"coins": "BTC", "device": "cpu"},
            {"overrides": {"epochs": 2}},
            {"seeds": 3},
            {"dtype": "float64"},
        )
    )
    assert plain == "smoke"
    assert changed == ["smoke+21c54cf1", "smoke+2a575314", "smoke+0445bc4e"]
