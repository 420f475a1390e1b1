"""The fleet for the benchmarks: whole trainings with the seed presets, and one step by itself."""

from typing import Any

import torch

from cpbmodels import Member, Series, train_fleet
from cpbmodels.arch.presets import preset
from cpbmodels.device import steps


def train(series: list[Series], architecture: str, **overrides: Any) -> list[Member]:
    """train_fleet with the seed preset of the architecture, one seed per series."""
    return train_fleet(
        series,
        architecture=architecture,
        preset=f"seed-{architecture}",
        seeds=list(range(len(series))),
        **overrides,
    )


def fleet_step(
    architecture: str,
    members: int,
    *,
    device: str = "cpu",
    compute: torch.dtype = torch.float32,
    kernels: bool = True,
    **overrides: Any,
) -> steps.FleetStep:
    """One optimizer step of a fresh fleet of seed size, as a function to be timed."""
    options = preset(f"seed-{architecture}", architecture, **overrides)
    return steps.fleet_step(architecture, options, members, torch.device(device), compute, kernels=kernels)
