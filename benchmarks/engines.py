"""What Ray costs beside the local engine: the whole job on the same cores, whole commands in pairs.

    python -m benchmarks.engines --source FOLDER --as-of 2025-06-06 [--repeats 3]

Ray's cluster stands before the clock starts, as one that people keep does: a head without cores, and a node for each
core. Each run has a home of its own; homes are seen by all nodes, so nothing is copied. Needs the extra `ray`.
"""

import argparse
import os
import secrets
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks._paired import main, paired


def train(engine: str, args: argparse.Namespace, environment: dict[str, str]) -> None:
    """Run `cpb train-all` with an engine, in a home of its own."""
    command = [sys.executable, "-m", "flows.cli", "train-all", "--engine", engine, "--preset", args.preset]
    for name in ("coins", "timeframes", "source", "as_of", "since"):
        if value := getattr(args, name):
            command += [f"--{name.replace('_', '-')}", value]
    with tempfile.TemporaryDirectory() as folder:
        place = {"CPB_HOME": f"{folder}/data", "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db"}
        ran = subprocess.run(
            command, cwd=folder, env=environment | place, capture_output=True, text=True, check=False
        )
    if ran.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {ran.returncode}:\n{ran.stderr[-2000:]}")


def engines(args: argparse.Namespace) -> dict[str, Any]:
    """Seconds of the whole job with Ray and with the local engine, and their ratio."""
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    root = str(Path(__file__).resolve().parents[1])
    if Path(args.source).exists():  # the commands run in folders of their own
        args.source = str(Path(args.source).resolve())
    # before Ray is imported
    os.environ.update({"RAY_AUTH_MODE": "token", "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": root})
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        for _ in range(os.cpu_count() or 1):
            cluster.add_node(num_cpus=1)
        local = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
        ray = local | {"RAY_ADDRESS": cluster.address}
        found = paired(
            partial(train, "ray", args, ray), partial(train, "local", args, local), repeats=args.repeats,
            warm_up=False,
        )  # fmt: skip
    finally:
        cluster.shutdown()
    told = found.as_dict()
    return {"ray / local": told["ratio"], "least": told["ratio_min"], "most": told["ratio_max"],
            "ray_s": told["slow_s"], "local_s": told["fast_s"]}  # fmt: skip


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--source", help="a mirror: folder or URL; default: the simulator", default="sim")
    parser.add_argument("--as-of")
    parser.add_argument("--since")
    parser.add_argument("--coins")
    parser.add_argument("--timeframes")
    parser.add_argument("--preset", default="smoke")
    parser.add_argument("--repeats", type=int, default=3)


if __name__ == "__main__":
    main("engines", {"engines": engines}, options=_options)
