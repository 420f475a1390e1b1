"""A fleet of small shards on simulated candles, and what trained ones are compared by."""

import shutil

import numpy as np
import pytest

from schemas.run import RunSpec
from tasks.judging.judge import judge_members
from tasks.judging.score_files import score_file
from tasks.steps import features, ingest, plan
from tasks.training import plan as shards
from tasks.training.shard import member_folder, read_result, shard_folder

SPEC = {
    "coins": "BTC,ETH",
    "timeframes": "1h",
    "architectures": "gru",
    "preset": "smoke",
    "source": "sim",
    "since": "2025-01",
    "as_of": "2025-04-01",
    "device": "cpu",
}


def planned_in(home, **options):
    """Store the simulator's candles in a home and plan a fleet there, a shard for each coin."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CPB_HOME", str(home))
        patch.setattr(shards, "MIN_MEMBERS", 1)
        patch.setattr(shards, "MAX_MEMBERS", 1)
        spec = RunSpec(**SPEC | options)
        records = [features(spec.scope, series) for series in ingest(spec.scope).series]
        (fleet,) = plan(spec, records).fleets
    assert [len(shard.members) for shard in fleet.shards] == [1] * len(records)
    return fleet


def copied(home, place):
    """Return a copy of a home in which nothing is trained."""
    shutil.copytree(home, place)
    return place


def models(root, fleet):
    """Every trained model's weights and score, judged here where it is not yet: bytes and figures."""
    trained = {}
    for shard in fleet.shards:
        folder = shard_folder(root, shard)
        members = read_result(folder).members
        unjudged = [m.name for m in members if not score_file(member_folder(folder, m.name)).exists()]
        assert judge_members(folder, unjudged) == []
        for member in members:
            place = member_folder(folder, member.name)
            weights = (place / "model" / "model.safetensors").read_bytes()
            with np.load(score_file(place)) as score:
                trained[member.name] = weights, {name: score[name].tobytes() for name in score.files}
    assert len(trained) == len(fleet.members)
    return trained
