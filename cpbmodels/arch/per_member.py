"""Options in which the members of one fleet may differ, and how a step of the fleet reads them.

Options that shape a step (sizes, batch, head, columns ..) are common to a fleet: members that differ there are trained
in fleets of their own. The others are a value per row. If all members of a fleet agree, its net's preset holds the
plain number, and every step is the same as without this file; if they differ, it holds a float64 tensor [K].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cpbmodels.arch.options import ALIASES, Preset
from cpbmodels.errors import ModelError

IN_STEP = ("dropout", "teacher_forcing", "location_shrink", "candle_weight", "clip", "weight_decay")
"""Read in every step, on the device."""

IN_RATE = ("lr", "schedule", "warmup_steps", "step_size", "step_gamma", "epochs")
"""Read by `loop.learning_rate`, on the host."""

PER_MEMBER = (*IN_STEP, *IN_RATE, "patience")

PerRow = float | Tensor
"""One value for all rows, or a float64 tensor [K] with a value for each."""

_COMMON = {name: getattr(Preset(), name) for name in PER_MEMBER}


def by_row(value: PerRow, like: Tensor) -> PerRow:
    """The value so that it can be multiplied with `like` [K, ...]: a number, or a tensor [K, 1, ..] of its dtype."""
    if not isinstance(value, Tensor):
        return value
    return value.to(like).view(-1, *[1] * (like.dim() - 1))


def is_exactly(value: PerRow, constant: float) -> bool:
    """Whether it is this constant in all rows. What is special in a step (`fleet_key`) is so in all rows or in none."""
    return not isinstance(value, Tensor) and value == constant


def fleet_key(options: Preset) -> tuple[Preset, bool, bool, bool]:
    """Equal for members that can be rows of one fleet.

    Without dropout no mask is drawn, and with a teacher_forcing of 0 or 1 no coin: such a member's step has other
    operations, and other keys for the draws that are left, than that of a member in between.
    """
    forcing = options.teacher_forcing
    return replace(options, **_COMMON), options.dropout > 0, forcing > 0, forcing == 1


def differing(options: Sequence[Preset], device: torch.device) -> dict[str, Tensor]:
    """float64 [K] on the device for each option of `IN_STEP` in which these members differ."""
    values = {name: [float(getattr(one, name)) for one in options] for name in IN_STEP}
    return {
        name: torch.tensor(own, dtype=torch.float64, device=device)
        for name, own in values.items()
        if len(set(own)) > 1
    }


def fleet_options(common: Preset, options: Sequence[Preset]) -> Preset:
    """The options of the fleet of these members: `common` with the members' own values of `PER_MEMBER`.

    `common` comes from the first of all members that can be rows of one fleet. They are cut into several fleets, by
    `fleet_size`, workers or memory, and if the members of a fleet agree, its plain number is theirs, not that member's.
    """
    return replace(common, **{name: getattr(options[0], name) for name in PER_MEMBER})


def overrides_by_member(overrides: dict[str, Any], members: int) -> list[dict[str, Any]]:
    """The overrides of each member: a list (tuple, array) holds one value per member, anything else is for all.

    `features` and `members` are lists by themselves, so one per member is a list of lists. ModelError if the length
    is another.
    """
    lists = {name: list(values) for name, values in overrides.items() if _is_per_member(name, values)}
    for name, values in lists.items():
        if len(values) != members:
            raise ModelError(
                f"{name} needs one value per member: {members}, not {len(values)} (or one value for all)."
            )
    plain = {name: value for name, value in overrides.items() if name not in lists}
    return [plain | {name: _plain(values[k]) for name, values in lists.items()} for k in range(members)]


def _is_per_member(name: str, values: Any) -> bool:
    if not isinstance(values, (list, tuple, np.ndarray)):
        return False
    if ALIASES.get(name, name) not in ("features", "members"):
        return True
    return bool(len(values)) and not isinstance(values[0], str)


def _plain(value: Any) -> Any:
    """numpy's numbers as Python's: a preset is written into config.json."""
    return value.item() if isinstance(value, np.generic) else value
