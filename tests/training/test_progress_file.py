"""A fleet's progress.json: what the terminal and the page read while it trains."""

import json
from types import SimpleNamespace

import pytest
from planned import fleet, universe

import cpbmodels
from schemas.handover import DeviceWork
from tasks.running.parallel import reports_to
from tasks.training.progress import FleetProgress, ProgressFile, add_cost, busy_share, read_costs

PLAN = fleet()
(JOB,) = PLAN.shards


def step(epoch, done, members=(0, 1), of_members=4):
    return cpbmodels.StepRecord(
        epoch=epoch, epochs=10, step=done, steps=5, members=list(members), of_members=of_members, device="cpu",
        data=(5136, 4), data_dtype="float32", data_mb=0.082,
    )  # fmt: skip


def epoch(number, stopped="", members=(0, 1)):
    of = [
        {"index": i, "train_loss": 1.0 + i, "val_loss": 2.0, "lr": 0.1, "stopped": stopped} for i in members
    ]
    return cpbmodels.EpochRecord(number, 10, 0.1, of, 500.0, 2.0, {"rss_peak_mb": 100.0})


@pytest.fixture
def told(tmp_path, monkeypatch):
    """A progress file that is written at every report, and what a listener hears of it."""
    monkeypatch.setattr("tasks.training.progress._EVERY_S", 0.0)
    heard = []
    listener = SimpleNamespace(progress=heard.append, line=heard.append)
    file, fleet_progress = ProgressFile(tmp_path, JOB.architecture), FleetProgress(PLAN)

    def read():
        heard.clear()
        state = json.loads((tmp_path / "progress.json").read_text())
        with reports_to(listener):
            fleet_progress.update(JOB, state)
        return state, list(heard)

    return file, read


def test_the_device_and_the_data_are_named_once_before_the_first_step(told):
    file, read = told
    file.on_step(step(1, 0))
    state, heard = read()
    assert (state["epoch"], state["epochs"], state["share"], state["eta_s"]) == (0, 10, 0.0, None)
    assert heard[0].startswith("training gru on cpu (")
    assert heard[1] == "Data on cpu: [5,136, 4] float32, 0.08 MB"
    assert len(read()[1]) == 1


def test_the_share_counts_every_member_and_those_that_stopped_as_done(told):
    file, read = told
    file.on_step(step(1, 0))
    file.on_step(step(3, 5))
    assert read()[0]["share"] == pytest.approx(0.15)
    file.on_epoch(epoch(3, stopped="early_stop"))
    state, heard = read()
    assert state["share"] == pytest.approx(0.5)
    assert (state["train_loss"], state["val_loss"], state["windows_per_s"]) == (1.5, 2.0, 500.0)
    assert state["eta_s"] > 0
    assert (heard[-1].done, heard[-1].total, heard[-1].facts[0]) == (5.0, 10, "loss 1.5000 / 2.0000")
    assert heard[-1].facts[-1] == "100 MB"
    spoilt = epoch(4)
    spoilt.members[0]["train_loss"] = float("nan")  # left out of the mean
    file.on_epoch(spoilt)
    assert read()[0]["train_loss"] == 2.0


def heard_of(told):
    """What a listener hears of what is told in a call: sentences, and reports."""
    heard = []
    with reports_to(SimpleNamespace(progress=heard.append, line=heard.append)):
        told()
    lines = [report for report in heard if isinstance(report, str)]
    return lines, [report for report in heard if not isinstance(report, str)]


def ended(reports):
    return {report.step for report in reports if report.done == report.total > 0}


def test_a_fleet_that_waits_says_for_what_and_then_what_it_does(told):
    file, read = told

    def wait():
        progress = FleetProgress(PLAN)
        progress.waiting("waiting for a free core")
        progress.waiting("starting its trainer")
        progress.ended(JOB)

    _, reports = heard_of(wait)
    assert [report.facts[:1] for report in reports[:2]] == [
        ("waiting for a free core",),
        ("starting its trainer",),
    ]
    assert ended(reports) == {"train gru"}
    file.on_step(step(1, 0))
    file.forecasting(0, 8)
    assert read()[1][-1].facts == ("forecasts the spans to be judged: 0/8 members",)


def test_shards_of_a_fleet_are_told_as_one(told):
    file, read = told
    plan = fleet(universe(), preset="seed-gru")
    assert len(plan.shards) == 20
    whole = FleetProgress(plan)
    file.on_step(step(5, 5, members=(0, 1, 2, 3)))
    state = read()[0]

    def train(shard):
        whole.update(shard, state)
        whole.ended(shard)

    lines, (report, end) = heard_of(lambda: train(plan.shards[0]))
    assert lines == [f"training gru on {state['device']}"]
    assert (report.step, report.done, report.unit) == ("train gru", state["share"], "shards")
    assert (report.total, end.done, end.total) == (20, 1, 20)
    lines, reports = heard_of(lambda: [train(shard) for shard in plan.shards[1:-1]])
    assert (lines, reports[-1].done, ended(reports)) == ([], 19, set())
    assert ended(heard_of(lambda: train(plan.shards[-1]))[1]) == {"train gru"}


COST = {"epoch": 1, "members_training": 2, "lr": 0.1, "epoch_seconds": 2.0, "epoch_windows_per_s": 500.0,
        "rss_peak_mb": 100.0, "train_loss": 1.5, "val_loss": 2.0}  # fmt: skip


def test_each_epoch_has_a_cost_also_of_a_training_that_was_killed_while_it_wrote(tmp_path):
    path = tmp_path / "epochs.jsonl"
    add_cost(path, epoch(1))
    assert list(read_costs(path)) == [COST]
    with path.open("a") as file:
        file.write('{"epoch": 2, "mem\n')
    add_cost(path, epoch(2))
    assert list(read_costs(path)) == [COST, COST | {"epoch": 2}]


def test_devices_are_busy_while_a_kernel_runs_or_their_processes_compute():
    def work(device, begin, end, busy_s):
        return DeviceWork(device=device, begin=begin, end=end, busy_s=busy_s, cpu_s=3.0)

    gpus = [work("GPU-a", 0.0, 8.0, 6.0), work("GPU-b", 1.0, 10.0, 4.0)]
    assert busy_share(gpus, 4) == {"device_busy_share": 0.5}
    assert busy_share([*gpus, work("GPU-a", 8.0, 10.0, None)], 4) == {}
    assert busy_share([work("", 0.0, 10.0, None)], 2) == {"device_busy_share": 0.15}
