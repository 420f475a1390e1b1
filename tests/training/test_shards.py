"""Shards follow from what is trained alone: not from the order of the series, nor from where they are trained."""

import random

import pytest
from planned import fleet, planned, universe

from schemas.run import RunSpec
from tasks.training.plan import MAX_MEMBERS, cut, job_key, plan_job, shard_seconds, shards_of


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


def test_the_order_of_the_series_changes_nothing():
    members = universe()
    once = fleet(members, preset="seed-gru")
    assert len(once.shards) == 20
    for seed in range(20):
        shuffled = random.Random(seed).sample(members, len(members))
        assert fleet(shuffled, preset="seed-gru") == once
    assert sorted(m.name for m in once.members) == sorted(m.name for m in members)


def test_a_shard_is_the_same_job_as_a_plan_of_its_members_alone():
    """What is left of a fleet, or lies on another machine, is planned to the same keys, bits and folders."""
    members, spec = universe(), RunSpec(preset="seed-gru")
    for shard in fleet(members, preset="seed-gru").shards:
        assert plan_job(spec, "gru", shard.members) == shard
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
        ["AUSDT-15m-fold-1", "BUSDT-15m-fold-1"], ["AUSDT-1h-fold-1", "BUSDT-1h-fold-1"],
        ["AUSDT-15m-fold-2", "BUSDT-15m-fold-2"], ["AUSDT-1h-fold-2", "BUSDT-1h-fold-2"],
    ]  # fmt: skip


def test_a_fleets_key_is_of_all_its_shards():
    members = universe()
    keys = {fleet(members[:n], preset="seed-gru").key for n in (4, 40, 80)}
    assert len(keys) == 3
    assert (
        fleet(members, preset="seed-gru", seed=2).key == fleet(members, preset="seed-gru").key
    )  # members carry it


def test_the_dearest_shards_are_queued_first():
    cheap = fleet(universe(), "har", preset="default")
    dear = fleet(universe(), "lstm", preset="seed-lstm")
    queue = shards_of([cheap, dear])
    assert [s.architecture for s in queue] == ["lstm"] * len(dear.shards) + ["har"] * len(cheap.shards)
    assert [shard_seconds(s) for s in queue] == sorted(map(shard_seconds, queue), reverse=True)
