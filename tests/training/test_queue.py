"""A run's shards train in a queue beside the judging; the trainers and the judges stand in."""

import threading
from types import SimpleNamespace

import pytest

from schemas.errors import CpbError
from schemas.handover import ShardResult, TrainedMember
from tasks.training.checkpoint import TRAINED
from tasks.training.plan import job_key
from tasks.training.queue import failed_shard, is_trained, resume_shards, train_and_judge, train_fleets
from tasks.training.shard import prepare, shard_folder
from tests.tools.planned import fleet, planned

GRU, HAR = fleet(), fleet(architecture="har")
BEFORE = {job_key(shard): "" for plan in (GRU, HAR) for shard in plan.shards}


class Engine:
    """An engine that takes this many shards at a time."""

    def __init__(self, at_once=1):
        self.at_once, self.closed = at_once, False

    def plan(self, shards):
        self.shards = shards
        return self.at_once

    def close(self):
        self.closed = True


def trained(job, _progress=None):
    """Every member of a shard, trained."""
    members = tuple(TrainedMember(model=m.model, name=m.name, history=(), report={}) for m in job.members)
    return ShardResult(key=job_key(job), architecture=job.architecture, members=members, train_seconds=2.0)


def names(judged):
    return [(plan.name, [job_key(shard) for shard in shards]) for plan, shards in judged]


def judge(plan, arrivals):
    return plan, [shard for shard, _ in arrivals]


def test_a_fleet_is_judged_while_the_next_one_trains():
    judged, said = threading.Event(), []

    def train(job, progress):
        if job.architecture == "har":  # the second in the queue of one
            assert judged.wait(30)
        return trained(job)

    def judge_one(plan, arrivals):
        shards = [shard for shard, _ in arrivals]
        judged.set()
        return plan, shards

    engine = Engine()
    results, found = train_and_judge(engine, [GRU, HAR], train, judge_one, BEFORE, said.append)
    assert (engine.shards, engine.closed) == (2, True)
    assert [[len(shard.members) for shard in shards] for shards in results] == [[2], [2]]
    assert names(found) == [(plan.name, [job_key(shard) for shard in plan.shards]) for plan in (GRU, HAR)]
    assert said == ["trained gru: 2 models (2.0 s)", "trained har: 2 models (2.0 s)"]


def test_an_error_costs_the_members_of_its_shard_alone_and_a_fault_names_its_place(caplog):
    def train(job, progress):
        if job.architecture == "gru":
            raise ZeroDivisionError("division by zero")
        return trained(job)

    results, judged = train_and_judge(Engine(2), [GRU, HAR], train, judge, BEFORE, lambda _: None)
    (lost,), (good,) = results
    assert [(f.model, f.step, f.reason) for f in lost.failures] == [
        (member.model, "train", "division by zero") for member in GRU.members
    ]
    assert (lost, len(good.members)) == (
        failed_shard(GRU.shards[0], ZeroDivisionError("division by zero")),
        2,
    )
    assert len(judged) == 2  # a fleet without a model too: its failures are recorded
    assert ("a part of gru was lost" in caplog.text, "Traceback" in caplog.text) == (True, True)
    caplog.clear()

    def full(job, progress):
        raise OSError("no space left")

    ((lost,),) = train_fleets(Engine(), [GRU], full)
    assert ({f.reason for f in lost.failures}, caplog.text) == ({"no space left"}, "")


def test_an_error_of_the_judging_ends_the_run_once_the_shards_are_trained():
    ended = []

    def train(job, progress):
        ended.append(job.architecture)
        return trained(job)

    def broken(plan, arrivals):
        raise CpbError(f"{plan.name} is not judged")

    with pytest.raises(CpbError, match="gru is not judged"):
        train_and_judge(Engine(), [GRU, HAR], train, broken, BEFORE, lambda _: None)
    assert sorted(ended) == ["gru", "har"]


def test_no_judge_waits_for_a_training_that_has_not_begun():
    engine = SimpleNamespace(plan=lambda shards: (_ for _ in ()).throw(CpbError("the device is away")))
    with pytest.raises(CpbError, match="the device is away"):
        train_and_judge(engine, [GRU, HAR], trained, judge, BEFORE, lambda _: None)


@pytest.mark.parametrize("resume", ["use", "expect", "forget"])
def test_earlier_training_is_continued_or_discarded(tmp_path, resume):
    plan, said = fleet([planned()]), []
    (shard,) = plan.shards
    folder = shard_folder(tmp_path, shard)
    assert resume_shards(tmp_path, [plan], resume, said.append) == {job_key(shard): ""}
    nothing = "nothing to resume: no such training on these candles has begun; starting from scratch"
    assert said == ([nothing] if resume == "expect" else [])
    prepare(tmp_path, shard)
    (folder / "checkpoint-1.pt").write_bytes(b"x")
    resume_shards(tmp_path, [plan], resume, said.append)
    assert (folder / "checkpoint-1.pt").exists() == (resume != "forget")


def test_a_fleet_is_trained_once_all_of_its_shards_are():
    (shard,) = GRU.shards
    assert is_trained(GRU, {job_key(shard): TRAINED})
    assert not is_trained(GRU, {job_key(shard): "epoch 3 of 5"})
