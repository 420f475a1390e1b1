"""What an epoch has cost, also of a training that was killed in between; how busy the devices were."""

from cpbmodels import EpochRecord
from schemas.handover import DeviceWork
from tasks.training.progress import EpochCosts, busy_share


def record(epoch, losses=(1.0,)):
    members = [{"index": i, "train_loss": x, "val_loss": 2 * x, "stopped": ""} for i, x in enumerate(losses)]
    values = {
        "lr": 0.1,
        "windows_per_s": 100.0,
        "seconds": 2.0,
        "memory": {"rss_mb": 300.0, "cpu_util": 50.0},
    }
    return EpochRecord(epoch=epoch, epochs=9, members=members, **values)


def test_each_epoch_has_a_cost_with_the_names_that_mlflow_has(tmp_path):
    costs = EpochCosts(tmp_path / "epochs.jsonl")
    costs.add(record(1, losses=(1.0, 3.0, float("nan"))))
    assert list(costs.read()) == [
        {"epoch": 1, "members_training": 3, "lr": 0.1, "epoch_seconds": 2.0, "epoch_windows_per_s": 100.0,
         "rss_mb": 300.0, "cpu_util": 50.0, "train_loss": 2.0, "val_loss": 4.0},
    ]  # fmt: skip


def test_a_killed_training_that_goes_on_keeps_the_epochs_from_before(tmp_path):
    path = tmp_path / "epochs.jsonl"
    EpochCosts(path).add(record(1))
    with path.open("a") as file:
        file.write('{"epoch": 2, "mem\n')  # killed while it wrote
    costs = EpochCosts(path)
    costs.add(record(2))
    assert [cost["epoch"] for cost in costs.read()] == [1, 2]


def test_devices_are_busy_while_a_kernel_runs_or_their_processes_compute():
    def work(device, begin, end, busy_s):
        return DeviceWork(device=device, begin=begin, end=end, busy_s=busy_s, cpu_s=3.0)

    gpus = [work("GPU-a", 0.0, 8.0, 6.0), work("GPU-b", 1.0, 10.0, 4.0)]
    assert busy_share(gpus, 4) == {"device_busy_share": 0.5}
    assert busy_share([*gpus, work("GPU-a", 8.0, 10.0, None)], 4) == {}
    assert busy_share([work("", 0.0, 10.0, None)], 2) == {"device_busy_share": 0.15}
