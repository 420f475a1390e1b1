"""The fleet for the benchmarks: whole trainings with the seed presets."""

from typing import Any

from cpbmodels import Member, Series, train_fleet


def train(series: list[Series], architecture: str, **overrides: Any) -> list[Member]:
    """train_fleet with the seed preset of the architecture, one seed per series."""
    return train_fleet(
        series,
        architecture=architecture,
        preset=f"seed-{architecture}",
        seeds=list(range(len(series))),
        **overrides,
    )
