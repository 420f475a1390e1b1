"""A Ray cluster as the engine that trains shards: connected, checked before anything is fetched, and disconnected.

Ray places tasks, retries them and assigns GPUs; Prefect remains the orchestrator. The command runs on a machine of the
cluster, usually its head. Without `RAY_ADDRESS` a cluster without dashboard is started for the command. Requests carry
Ray's token (`RAY_AUTH_MODE=token`), so a cluster started with a token rejects other users.
"""

import io
import logging
import os
import signal
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from schemas.errors import CpbError, UsageError
from schemas.run import RunSpec
from tasks.running.parallel import usable_cores
from tasks.running.progress import tell
from tasks.running.resident import Cores
from tasks.training import ray_node
from tasks.training.devices import plan_slots
from tasks.training.ray_address import ADDRESS, AUTH_MODE, HERE, unreachable
from tasks.training.ray_executor import RayExecutor

log = logging.getLogger("cpb")

PROBE_S = 120.0
"""Seconds within which every node must report its versions."""

GPU, CPU, MEMORY = "GPU", "CPU", "memory"
"""Ray's names of resources; memory in bytes."""


MIN_CALLS, MAX_CALLS = 64, 1024
"""Maximum shards submitted to Ray: twice as many as its nodes can train, within these bounds. Each has a thread here,
and its features in Ray's object store."""


@dataclass(frozen=True)
class RayEngine:
    """A cluster that this process is connected to. `nodes`: each node's resources, by Ray's names."""

    ray: Any
    spec: RunSpec
    home: Path
    nodes: list[dict[str, float]]
    cores: Cores = field(default_factory=lambda: Cores(usable_cores()))
    """Cores of this machine, which judges: nodes only train and predict."""

    @property
    def largest(self) -> dict[str, float]:
        """The maximum of each resource on any single node."""
        return {name: max(node.get(name, 0.0) for node in self.nodes) for name in (GPU, CPU, MEMORY)}

    @property
    def gpus(self) -> bool:
        """Whether shards train on GPUs: some node has a GPU, and `device` is not cpu."""
        return self.spec.device != "cpu" and self.largest[GPU] >= 1

    def executor(self, shards: int) -> RayExecutor:
        """Return the executor for a plan of `shards` shards on the cluster."""
        threads = min(plan_slots("cpu", shards).threads, max(1, int(self.largest[CPU])))
        places = sum(
            int(node.get(GPU, 0) if self.gpus else node.get(CPU, 0) // threads) for node in self.nodes
        )
        return RayExecutor(
            self.ray, self.home.absolute(), self.largest, threads=threads, gpu=self.gpus,
            calls=max(1, min(shards, max(MIN_CALLS, 2 * places), MAX_CALLS)),
        )  # fmt: skip

    def leave(self) -> None:
        """Disconnect: from now on, losing the head does not end this process."""
        self.ray.shutdown()


@contextmanager
def connected(spec: RunSpec) -> Iterator[RayEngine]:
    """Connect to the cluster, check its nodes, and disconnect at the end of the block, which ends running tasks.

    Raises:
        UsageError: no node has the GPU that `device` names.
        CpbError: Ray is not installed, the cluster cannot be reached, or its nodes have other versions.
    """
    ray = _ray()
    with redirect_stdout(
        _DebugLog()
    ):  # Ray prints tracebacks there of errors that `RayExecutor` reports itself
        with _own_signals():
            _init(ray)
        try:
            nodes = [node["Resources"] for node in _checked_nodes(ray)]
            tell("Ray", 1, 1, "")
            engine = RayEngine(ray, spec, spec.scope.home, nodes)
            if not nodes or not engine.largest[CPU]:
                raise CpbError(
                    "no node of the Ray cluster has a CPU for training: start one with `ray start --address=HEAD:6379`",
                    code="ray-empty",
                )
            if spec.device.startswith("cuda") and not engine.largest[GPU]:
                raise UsageError(
                    f"device {spec.device!r}: no node of the Ray cluster has a GPU; choose cpu or auto",
                    code="device", field="device",
                )  # fmt: skip
            yield engine
        finally:
            ray.shutdown()


class _DebugLog(io.TextIOBase):
    """Redirects Ray's own output to the debug log: stdout is for results."""

    def write(self, text: str) -> int:
        """Log a piece of text."""
        if text.strip():
            log.debug("Ray: %s", text.strip())
        return len(text)


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keep this process's SIGTERM handler: Ray's handler prints native stack traces and exits with 15."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _ray() -> Any:
    os.environ.setdefault(AUTH_MODE, "token")  # read when Ray is imported
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    return ray


def _init(ray: Any) -> None:
    address = os.environ.get(ADDRESS, "")
    here = address in HERE
    what = (
        f"starting a cluster on this machine ({ADDRESS} names none)"
        if here
        else f"asking the cluster {address}"
    )
    tell("Ray", 0, 0, "", what)
    quiet = {"log_to_driver": False, "logging_level": "ERROR", "namespace": f"cpb-{uuid.uuid4().hex[:8]}"}
    try:
        if here:
            ray.init(address="local", include_dashboard=False, **quiet)
        else:
            ray.init(address=address, **quiet)
    except (ray.exceptions.RayError, RuntimeError, ValueError, OSError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = lines[0].rstrip(".:") if lines else type(error).__name__
        # Something listens there (`check_cluster`), and without a valid token Ray gives no more details.
        hint = "" if here else "; is its token that cluster's?"
        raise unreachable(address or "of this machine", f"{reason}{hint}") from error


def _checked_nodes(ray: Any) -> list[dict[str, Any]]:
    """Request the versions of every node; return the nodes that respond."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    own, ask = ray_node.versions(), ray.remote(num_cpus=0, max_retries=1)(ray_node.node_facts)
    nodes = [node for node in ray.nodes() if node["Alive"]]
    replies = [
        ask.options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node["NodeID"], soft=False)
        ).remote()
        for node in nodes
    ]
    return [
        node
        for node, answer in zip(nodes, replies, strict=True)
        if _is_usable(ray, node["NodeManagerAddress"], answer, own)
    ]


def _is_usable(ray: Any, address: str, answer: Any, own: dict[str, str]) -> bool:
    """Whether a node has the right versions; False if it was lost meanwhile; raises `CpbError` if versions differ."""
    try:
        facts = ray.get(answer, timeout=PROBE_S)
    except (ray.exceptions.NodeDiedError, ray.exceptions.TaskUnschedulableError):
        log.warning("node %s of the Ray cluster was lost while its versions were requested", address)
        return False
    except ray.exceptions.RayError as error:
        reason = str(error).strip().splitlines()[-1]
        raise CpbError(
            f"node {address} of the Ray cluster cannot run cpb ({reason}): copy the project's folder there and run "
            "`pip install -c constraints.txt -e ./cpbmodels -e '.[ray]'` in it, or stop that node",
            code="versions",
        ) from error
    if differs := ray_node.difference(own, facts["versions"]):
        raise CpbError(
            f"node {facts['name']} ({address}) of the Ray cluster has {differs}: results would differ; "
            "install the same on every machine",
            code="versions",
        )
    return True
