"""How far one member of a fleet is: its losses, its best epoch, and why it has stopped."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cpbmodels.arch.options import Preset


@dataclass
class MemberProgress:
    """What is known of one member after an epoch; plain values, so it goes into the checkpoint as it is.

    best: lowest validation loss so far, in epoch `best_epoch` (from 1; 0: none yet).
    waited: epochs since then. stopped: "", "early_stop", "max_epochs", "nan", "on_request" or "closed_form", with a
        reason.
    """

    history: list[dict[str, Any]] = field(default_factory=list)
    best: float = float("inf")
    best_epoch: int = 0
    waited: int = 0
    stopped: str = ""
    reason: str = ""

    @property
    def diverged(self) -> bool:
        """Whether a loss was not finite before any epoch improved validation: the snapshot is the initial weights."""
        return self.stopped == "nan" and self.best_epoch == 0

    def record(self, epoch: int, train: float, val: float, lr: float, options: Preset) -> bool:
        """Add an epoch's losses; True if it is the best so far. Sets `stopped` if the member must stop."""
        self.history.append({"epoch": epoch + 1, "train_loss": train, "val_loss": val, "lr": lr})
        # Before the comparison: NaN is smaller than nothing, and would pass for an epoch without improvement.
        if not (np.isfinite(train) and np.isfinite(val)):
            self.stopped = "nan"
            kept = f"the snapshot of epoch {self.best_epoch}" if self.best_epoch else "its initial weights"
            self.reason = f"the loss was not finite in epoch {epoch + 1}; the member keeps {kept}"
            return False
        # Strictly: of two equal losses the earlier epoch, which was trained less, stays.
        better = val < self.best
        self.best, self.best_epoch, self.waited = (
            (val, epoch + 1, 0) if better else (self.best, self.best_epoch, self.waited + 1)
        )
        if self.waited >= options.patience:
            self.stopped, self.reason = "early_stop", f"no better validation loss for {self.waited} epochs"
        # A member's own epochs: those of its neighbours may go on.
        elif epoch + 1 >= options.epochs:
            self.stopped, self.reason = "max_epochs", f"all {options.epochs} epochs done"
        return better
