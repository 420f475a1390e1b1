"""How busy would a GPU be? `python -m research.schedule --source FOLDER --as-of 2025-06-06 [--seconds 4]`

Runs `cpb train-all --preset smoke` twice in a folder of its own: first as it is, on the CPU; then with a stand-in for a
GPU, whose trainer sleeps `--seconds` for a shard (an H100 trained and predicted 40 small members in 3 to 5 s) and hands
over the members of the first run. All else is the real thing: ingestion of stored candles, the queue, the device's
lock, judges, pictures, MLflow, promotion, forecasts. Prints the seconds until the first batch, those of the command,
and `device_busy_share`.

A real GPU's machine has more cores for the judges, and its trainer takes longer to start (it opens CUDA).
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from schemas.handover import DeviceWork, ShardResult
from tasks.running.resident import Orders
from tasks.storage.records import write_record
from tasks.training.files import JOB, RESULT, read_job, read_result, shard_folders

GPU = "GPU-stand-in"
_TRAINED, _SECONDS = "CPB_STAND_IN_TRAINED", "CPB_STAND_IN_SECONDS"


def serve(orders: Orders) -> None:
    """Stand in for `tasks.training.trainer` (the child of `drive`)."""
    import torch  # noqa: F401 - a trainer's start is mostly this

    for order in orders:
        hand_over(Path(order["folder"]), Path(os.environ[_TRAINED]), float(os.environ[_SECONDS]))
        orders.answer()


def hand_over(folder: Path, trained: Path, seconds: float) -> None:
    """Sleep, then leave in `folder` what a trainer would: its job's members, as the shards in `trained` have them."""
    job, begin = read_job(folder), time.time()
    time.sleep(seconds)
    work = DeviceWork(device=GPU, begin=begin, end=time.time(), busy_s=time.time() - begin, cpu_s=0.0)
    wanted = {member.name for member in job.members}
    members: list[Any] = []
    for shard in shard_folders(trained.parent):
        if not (shard / RESULT).exists() or read_job(shard).architecture != job.architecture:
            continue
        for member in read_result(shard).members:
            if member.name in wanted:
                shutil.copytree(shard / "members" / member.name, folder / "members" / member.name)
                members.append(member)
    result = ShardResult(
        key=folder.name,
        architecture=job.architecture,
        members=tuple(members),
        train_seconds=seconds,
        work=work,
    )
    write_record(folder / RESULT, result, of=folder.name)


def drive(arguments: list[str]) -> None:
    """Run a command of cpb that finds one GPU, the stand-in."""
    from flows.cli import main as cpb
    from tasks.training import devices, runner

    devices.gpus_of = runner.gpus_of = lambda device: (GPU,)  # type: ignore[assignment]
    runner.TRAINER = "research.schedule"
    sys.argv = ["cpb", *arguments]
    cpb()


def main(argv: list[str] | None = None) -> None:
    """Run both and print the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", required=True)
    parser.add_argument("--as-of", required=True)
    parser.add_argument("--seconds", type=float, default=4.0, help="that the stand-in is at work for a shard")
    parser.add_argument("--coins", help="default: all")
    asked = parser.parse_args(argv)
    command = [
        "train-all",
        "--preset",
        "smoke",
        "--source",
        str(Path(asked.source).absolute()),
        "--as-of",
        asked.as_of,
    ]
    command += ["--coins", asked.coins] if asked.coins else []
    root = Path(__file__).parents[1]
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"PYTHONPATH": str(root), "CPB_HOME": f"{folder}/data"}
        environment["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder}/mlruns/mlflow.db"
        first = [sys.executable, "-m", "flows.cli", *command, "--device", "cpu"]
        subprocess.run(first, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
        trained = Path(folder, "trained", "fleets")
        shutil.copytree(Path(folder, "data", "fleets"), trained)
        environment |= {_TRAINED: str(trained), _SECONDS: str(asked.seconds)}
        start = time.time()
        code = f"from research.schedule import drive; drive({[*command, '--json']!r})"
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=folder,
            env=environment,
            check=True,
            capture_output=True,
            text=True,
        )
        took = time.time() - start
        shards = [
            read_result(one)
            for one in shard_folders(Path(folder, "data"))
            if (one / JOB).stat().st_mtime >= start and (one / RESULT).exists()
        ]
        work = [one.work for one in shards if one.work]
        busy = sum(one.busy_s for one in work) / (
            max(one.end for one in work) - min(one.begin for one in work)
        )
        members = json.loads(done.stdout)["members"]
        print(
            f"{members} members in {len(work)} shards of {asked.seconds:g} s: first batch after "
            f"{min(one.begin for one in work) - start:.1f} s, the command {took:.1f} s, device_busy_share {busy:.2f}"
        )


if __name__ == "__main__":
    main()
