"""What a trainer's `progress.json` says, told to whoever shows progress (`tasks.progress`)."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from schemas.handover import FleetJob
from tasks.progress import Progress, tell, tell_line, tell_progress
from tasks.training.slots import Slots


class TrainerTold:
    """Receives the contents of `progress.json` whenever it has changed."""

    def __init__(self, architecture: str) -> None:
        self._name, self._device = architecture, ""

    def starting(self) -> None:
        """Tell that the trainer has a place to train in; until it has loaded its libraries it says nothing itself."""
        tell(f"train {self._name}", 0, 0, "epochs", "starting its trainer")

    def __call__(self, state: Mapping[str, Any]) -> None:
        """Tell of the device once, then of every change."""
        if state["device"] and state["device"] != self._device:
            self._device = state["device"]
            tell_line(f"training {self._name} on {self._device}")
            tell_line(state["data"])
        if state["stage"] == "forecasting":
            tell(_predicting(self._name), state["forecasts"], state["to_forecast"], "members")
            tell(f"train {self._name}", 1, 1, "epochs")
            return
        tell_progress(
            Progress(
                f"train {self._name}",
                min(state["share"], 0.999) * state["epochs"],
                state["epochs"],
                "epochs",
                tuple(_facts(state)),
                state["epoch"],
                _epoch_line(self._name, state),
            )
        )


@contextmanager
def telling_training(job: FleetJob, slots: Slots) -> Iterator[TrainerTold]:
    """Tell that a fleet waits for its place, then what its trainer says, then the end, however the block ends."""
    name = job.architecture
    tell(f"train {name}", 0, 0, "epochs", f"waiting for a free {'GPU' if slots.gpus else 'core'}")
    try:
        yield TrainerTold(name)
    finally:
        for step in (f"train {name}", _predicting(name)):
            tell(step, 1, 1, "epochs")


def _predicting(name: str) -> str:
    return f"predict the test span with {name}"


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
