"""What the trainer does with a job that it cannot train, or need not."""

import types
from contextlib import closing

import pytest

from schemas.errors import CpbError
from schemas.handover import ShardResult
from schemas.run import RunSpec
from tasks.storage.records import write_record
from tasks.storage.sealed import sealed_files
from tasks.training import shard_training, trainer
from tasks.training.plan import job_key
from tasks.training.shard import RESULT, prepare, read_result, shard_folder
from tasks.training.trainer import train_once
from tasks.training.trainers import GPU_LOST, Slots, Trainers
from tests.tools.planned import job as planned_job
from tests.tools.planned import planned
from tests.tools.shard_tools import home_with_job


@pytest.fixture
def job():
    """A job of two series whose features are nowhere."""
    return planned_job(planned(), planned("ETHUSDT"))


def test_a_fleet_without_a_series_that_can_be_read_says_why(job, tmp_path):
    folder = prepare(tmp_path, job)
    with pytest.raises(CpbError) as caught:
        train_once(folder)
    assert caught.value.code == "empty-fleet"
    assert "BTCUSDT" in str(caught.value)
    assert not (folder / RESULT).exists()


def test_a_fleet_that_is_trained_is_left_as_it_is(job, tmp_path):
    folder = prepare(tmp_path, job)
    write_record(folder / RESULT, ShardResult(key=job_key(job), architecture="gru"))
    before = (folder / RESULT).read_bytes()
    train_once(folder)
    assert (folder / RESULT).read_bytes() == before
    assert not (folder / "members").exists()


@pytest.mark.parametrize("lost", [True, False])
def test_a_lost_gpu_is_the_last_word(lost, tmp_path, monkeypatch):
    def train_once(*_):
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nCompile with ..")

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(trainer, "train_once", train_once)
    monkeypatch.setattr(trainer, "_gpu_is_lost", lambda: lost)
    kind, words = (CpbError, f"{GPU_LOST}: CUDA error: an illegal") if lost else (RuntimeError, "^CUDA error")
    with pytest.raises(kind, match=words):
        trainer.serve([(tmp_path, "")])


def test_kernels_are_compiled_ahead_until_the_first_order(monkeypatch):
    requests, asked = types.SimpleNamespace(waiting=False), []

    def kernels_off(name, options, device):
        asked.append((name, options.batch_size))
        requests.waiting = len(asked) == 2

    monkeypatch.setattr(trainer, "kernels_off", kernels_off)
    spec = RunSpec(preset="default,seed-lstm,smoke", architectures="har,lstm,gru")
    fleets = [fleet.model_dump() for fleet in spec.fleets]
    assert [fleet["architecture"] for fleet in fleets] == ["har", "lstm", "har", "lstm", "gru"]
    trainer.compile_kernels({"fleets": fleets, "profile": "auto"}, requests)
    assert asked == [("har", 512), ("lstm", 32)]


def test_a_gpu_is_busy_for_the_share_of_time_that_its_driver_says(monkeypatch):
    class Sampled(shard_training.Monitor):
        def summary(self):
            return super().summary() | {"gpu_util_mean": 40.0}

    monkeypatch.setattr(shard_training, "Monitor", lambda device, quiet: Sampled("cpu", quiet=quiet))
    for device, share in (("cuda", 0.4), ("cpu", None)):
        with shard_training.measured(device) as work:
            done = work()
        assert done.busy_s == (share and pytest.approx(share * (done.end - done.begin)))


@pytest.mark.slow
def test_a_shard_has_the_same_bits_and_figures_whatever_was_trained_before_it(tmp_path):
    """A small and a large shard, in both requests, by one trainer each."""
    kinds = {"small": ("linear", 500), "large": ("gru", 40_000)}
    results, weights = {}, {}
    for names in (("small", "large"), ("large", "small")):
        with closing(Trainers(Slots((), 1, 1))) as trainers:
            for name in names:
                architecture, hours = kinds[name]
                home = tmp_path / "-".join((*names, name))
                job = home_with_job(home, architecture, hours=hours, epochs=2)
                trainers.train(prepare(home, job), 300)
                folder = shard_folder(home, job)
                results[names[0], name] = read_result(folder)
                (member,) = results[names[0], name].members
                weights[names[0], name] = sealed_files(folder / "members" / member.name)[
                    "model/model.safetensors"
                ]
    for name in kinds:
        (first,), (second,) = (results[order, name].members for order in ("small", "large"))
        assert weights["small", name] == weights["large", name]
        assert [epoch["val_loss"] for epoch in first.history] == [
            epoch["val_loss"] for epoch in second.history
        ]
        peaks = [member.report["rss_peak_mb"] for member in (first, second)]
        assert max(peaks) - min(peaks) < 0.1 * min(peaks), (name, peaks)
        work = results["small", name].work
        assert work.end > work.begin
        assert work.busy_s is None
        assert work.cpu_s > 0
    small, large = (results["large", name].members[0].report["rss_peak_mb"] for name in kinds)
    assert small < large  # though it was trained after it
