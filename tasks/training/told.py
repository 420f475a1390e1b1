"""What trainers' `progress.json` say, told to whoever shows progress (`tasks.progress`): a fleet as one."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from schemas.handover import FleetJob, FleetPlan
from tasks.progress import Progress, tell, tell_line, tell_progress
from tasks.training.planning import job_key


class FleetTold:
    """How far a fleet's shards have come, all together; its methods are called from the shards' threads."""

    def __init__(self, plan: FleetPlan) -> None:
        self.name = plan.architecture
        self._members = {job_key(shard): len(shard.members) for shard in plan.shards}
        self._shares = dict.fromkeys(self._members, 0.0)
        self._judged = dict.fromkeys(self._members, 0)
        self._ended: set[str] = set()
        self._devices: set[str] = set()
        self._lock = threading.Lock()

    @contextmanager
    def shard(self, job: FleetJob) -> Iterator["ShardTold"]:
        """Take in what becomes of one shard; its end however the block ends, and the fleet's with the last one."""
        key = job_key(job)
        try:
            yield ShardTold(self, key)
        finally:
            with self._lock:
                self._shares[key] = 1.0
                self._ended.add(key)
                over = len(self._ended) == len(self._members)
            if over:
                for step in (self.training, self.predicting, self.judging):
                    tell(step, 1, 1, "epochs")

    @property
    def training(self) -> str:
        """Name of the work while any shard trains."""
        return f"train {self.name}"

    @property
    def predicting(self) -> str:
        """Name of the work while a shard's models forecast the spans to be judged."""
        return f"predict the test span with {self.name}"

    @property
    def judging(self) -> str:
        """Name of the work while a shard's models are judged."""
        return f"judge {self.name}"

    @property
    def is_whole(self) -> bool:
        """Whether the fleet is one shard."""
        return len(self._members) == 1

    def idle(self, what: str) -> None:
        """Tell what a shard waits for, unless others are at work: then those are what is shown."""
        if not any(self._shares.values()):
            tell(self.training, 0, 0, "epochs", what)

    def is_new_device(self, device: str) -> bool:
        """Whether no shard has named this device before."""
        with self._lock:
            new = device not in self._devices
            self._devices.add(device)
        return new

    def share(self, key: str, share: float) -> float:
        """Take in the share of a shard's epochs that is done; return that of the fleet's."""
        with self._lock:
            self._shares[key] = share
            done = sum(self._shares[k] * n for k, n in self._members.items())
        return done / max(sum(self._members.values()), 1)

    def judged(self, key: str, done: int) -> tuple[int, int]:
        """Take in how many of a shard's members are judged; return that of the fleet's, and of how many."""
        with self._lock:
            self._judged[key] = done
            return sum(self._judged.values()), sum(self._members.values())

    def shards_done(self) -> str:
        """Return how many shards are done, as `3/10 shards`."""
        return f"{len(self._ended)}/{len(self._members)} shards"


class ShardTold:
    """Receives the contents of one shard's `progress.json` whenever it has changed."""

    def __init__(self, fleet: FleetTold, key: str) -> None:
        self._fleet, self._key = fleet, key

    def waiting(self, place: str) -> None:
        """Tell that the shard waits for a place to train in."""
        self._fleet.idle(f"waiting for a free {place}")

    def starting(self) -> None:
        """Tell that the trainer has a place to train in; until it has loaded its libraries it says nothing itself."""
        self._fleet.idle("starting its trainer")

    def __call__(self, state: Mapping[str, Any]) -> None:
        """Tell of each device once, then of every change."""
        fleet = self._fleet
        if state["device"] and fleet.is_new_device(state["device"]):
            tell_line(f"training {fleet.name} on {state['device']}")
            if fleet.is_whole:
                tell_line(state["data"])
        share = fleet.share(self._key, state["share"])
        if state["stage"] == "training":
            self._tell_training(state, share)
        elif state["stage"] == "forecasting":
            if fleet.is_whole:
                tell(fleet.predicting, state["forecasts"], state["to_forecast"], "members")
                tell(fleet.training, 1, 1, "epochs")
        else:
            tell(fleet.predicting, 1, 1, "members")
            tell(fleet.judging, *fleet.judged(self._key, state["judged"]), "members")

    def _tell_training(self, state: Mapping[str, Any], share: float) -> None:
        fleet = self._fleet
        facts = tuple(_facts(state))
        tell_progress(
            Progress(
                fleet.training,
                min(share, 0.999) * state["epochs"],
                state["epochs"],
                "epochs",
                facts if fleet.is_whole else (fleet.shards_done(), *facts),
                state["epoch"] if fleet.is_whole else 0,
                _epoch_line(fleet.name, state) if fleet.is_whole else "",
            )
        )


def _facts(state: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a bar shows beside the epochs, the most important first."""
    if state["train_loss"] is not None:
        yield _losses("loss {} / {}", state)
    if state["batches"] > 1:
        yield f"batch {state['batch']:,}/{state['batches']:,}"
    if "windows_per_s" in state:
        yield f"{state['windows_per_s']:,.0f} windows/s"
        yield f"{_megabytes(state['memory'])[0]:,.0f} MB"
        yield f"lr {state['lr']:.1e}"


def _epoch_line(name: str, state: Mapping[str, Any]) -> str:
    if state["train_loss"] is None and state["val_loss"] is None:
        return ""
    now, peak = _megabytes(state["memory"])
    return (
        f"{name}: epoch {state['epoch']}/{state['epochs']}  {_losses('train loss {}  validation loss {}', state)}  "
        f"memory {now:,.0f} MB, peak {peak:,.0f} MB"
    )


def _losses(form: str, state: Mapping[str, Any]) -> str:
    values = (state["train_loss"], state["val_loss"])
    return form.format(*("-" if one is None else f"{one:.4f}" for one in values))


def _megabytes(memory: Mapping[str, float]) -> tuple[float, float]:
    """Return the memory in use and its peak: the GPU's where there is one, else the process's."""
    for now, peak in (("gpu_mem_allocated_mb", "gpu_mem_allocated_peak_mb"), ("rss_mb", "rss_peak_mb")):
        if now in memory or peak in memory:
            return memory.get(now, memory.get(peak, 0.0)), memory.get(peak, memory.get(now, 0.0))
    return 0.0, 0.0
