"""Options of `cpb tune`, and its search space."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from pydantic import Field, model_validator

from cpbmodels.arch.options import ALIASES, Preset
from schemas.errors import UsageError
from schemas.fleets import FleetSpec, is_universal
from schemas.presets import one_preset
from schemas.run import RunSpec

CHANGES_LOSS = ("head", "loss", "candle_weight", "flat_band", "target_clip", "horizon")
"""Options that change the definition of the loss."""

_UNITS = {"s": 1, "m": 60, "h": 3600}


@dataclass(frozen=True)
class Range:
    """Numbers from low to high, both included: integers, or reals on a linear or logarithmic scale."""

    low: float
    high: float
    log: bool = False
    whole: bool = False

    @property
    def values(self) -> tuple[Any, ...]:
        """Both ends, which are checked for validity."""
        return (int(self.low), int(self.high)) if self.whole else (self.low, self.high)


@dataclass(frozen=True)
class Choice:
    """A choice among values."""

    values: tuple[Any, ...]


Space = dict[str, Range | Choice]

DEFAULT_SPACE: Space = {
    "lr": Range(1e-4, 3e-2, log=True),
    "weight_decay": Range(1e-6, 0.3, log=True),
    "clip": Range(0.05, 10, log=True),
    "dropout": Range(0.01, 0.5),
    "warmup_steps": Range(0, 100, whole=True),
    "schedule": Choice(("cosine", "constant")),
    "location_shrink": Range(0, 1),
}
"""Options that do not change the loss, so that unfinished trials can be compared and all trained in a single fleet."""


class TuneSpec(RunSpec):
    """Options of `cpb tune`. `overrides` apply to all trials; an option given there is not searched."""

    coins: str = Field("BTC,ETH,BNB,XRP,SOL", description="BTC,ETH or all; a coin without a quote means USDT")
    timeframes: str = Field("1h", description="Binance intervals, as in 1h")
    architectures: str | None = Field(
        None, description="the architecture, as in gru; default: the preset's, if it is one"
    )
    trials: int = Field(64, ge=1, le=100_000, description="trials in all, those of earlier calls included")
    budget: str | None = Field(
        None,
        description="time for the trials, as in 90s, 10m or 2h, after candles are read and the device is free; the "
        "winner is trained after it; default: none",
    )
    folds: int = Field(2, ge=1, le=12, description="rolling validation folds, all before the test span")
    search: str | None = Field(
        None, description="in place of the default space, as in lr=1e-4..1e-2:log,hidden_dim=16|32"
    )

    @model_validator(mode="before")
    @classmethod
    def _one_preset(cls, values: Any) -> Any:
        if "preset" in values:
            one = one_preset(values["preset"], "`cpb tune` searches from one preset; name one")
            values = values | {"preset": one}
        return values

    @model_validator(mode="after")
    def _what_can_be_searched(self) -> Self:
        import cpbmodels

        if len(self.fleets) != 1 or is_universal(self.fleets[0].architecture):
            names = ",".join(fleet.architecture for fleet in self.fleets)
            raise UsageError(
                f"architectures {names}: name one architecture that learns a coin at a time, as in gru",
                code="architectures",
            )
        info = cpbmodels.architecture(self.fleet.architecture)
        if info.closed_form or info.classifier:
            what = "has a closed-form solution" if info.closed_form else "forecasts no price"
            raise UsageError(
                f"architectures: {info.name} {what}; choose another architecture", code="architectures"
            )
        _ = self.budget_s
        self._check_space()
        return self

    def _check_space(self) -> None:
        """Check that training accepts both ends of every range and every choice; errors are the same as in training."""
        import cpbmodels

        fleet = self.fleet
        for name, values in self.ranges.items():
            if name in CHANGES_LOSS:
                raise UsageError(
                    f"search: trials that differ in {name} have losses that cannot be compared; fix it with --set",
                    code="search",
                )
            # both ends of a range: what holds at both holds between them
            for value in values.values:
                try:
                    options = cpbmodels.preset(
                        fleet.preset, fleet.architecture, **fleet.overrides | {name: value}
                    )
                except cpbmodels.ModelError as error:
                    raise UsageError(str(error), code="search") from None
            # a search over an option that nothing reads would spend its trials on noise
            ignored = cpbmodels.without_effect(options, fleet.architecture, [name])
            if ignored:
                raise UsageError(ignored[0], code="without-effect", field="search")

    @property
    def fleet(self) -> FleetSpec:
        """The fleet of a trial, without the options that are searched."""
        return self.fleets[0]

    @property
    def ranges(self) -> Space:
        """The search space: the options in `search`, otherwise the default space minus options without effect."""
        import cpbmodels

        if self.search:
            searched = [parse_range(text) for text in self.search.split(",")]
            names = [name for name, _ in searched]
            if twice := [name for name in names if names.count(name) > 1 or name in self.overrides]:
                raise UsageError(
                    f"search: {twice[0]} is given twice, searched and with another range or value; leave one out",
                    code="search",
                )
            return dict(searched)
        fleet = self.fleet
        options = cpbmodels.preset(fleet.preset, fleet.architecture, **fleet.overrides)
        space = {name: values for name, values in DEFAULT_SPACE.items() if name not in fleet.overrides}
        if options.head != "student-t":  # the other heads do not shrink their location
            space.pop("location_shrink", None)
        return {
            name: values
            for name, values in space.items()
            if not cpbmodels.without_effect(options, fleet.architecture, [name])
        }

    @property
    def budget_s(self) -> float | None:
        """The budget in seconds; None for no limit."""
        if self.budget is None:
            return None
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", self.budget.strip())
        if not match or float(match[1]) <= 0:
            raise UsageError(f"budget {self.budget!r} is not a time: write 90s, 10m or 2h", code="budget")
        return float(match[1]) * _UNITS[match[2] or "s"]


def parse_range(text: str) -> tuple[str, Range | Choice]:
    """Return an option's field and its range or choice: `lr=1e-4..1e-2:log`, `hidden_dim=16|32`.

    Raises:
        UsageError: the text is neither a range nor a choice.
    """
    name, _, values = text.partition("=")
    name = name.strip().replace("-", "_")
    name = ALIASES.get(name, name)
    wrong = UsageError(
        f"search {text!r} is neither NAME=LOW..HIGH[:log] nor NAME=A|B|C, as in lr=1e-4..1e-2:log",
        code="search",
    )
    # the first `..` that no digit's own point belongs to: .1..0.5 and 1..5
    if match := re.fullmatch(r"\s*([^.|]*(?:\.\d[^.|]*)?)\.\.([^|:]+?)(:log)?\s*", values):
        try:
            low, high = float(match[1]), float(match[2])
        except ValueError:
            raise wrong from None
        # a logarithmic scale has no 0
        if not low < high or (match[3] and low <= 0):
            raise wrong
        return name, Range(low, high, log=bool(match[3]), whole=_is_whole(name))
    choices = tuple(_value(part.strip()) for part in values.split("|"))
    if not name or len(choices) < 2 or "" in choices:
        raise wrong
    return name, Choice(choices)


def _is_whole(name: str) -> bool:
    default = getattr(Preset(), name, 0)
    return isinstance(default, int) and not isinstance(default, bool)


def _value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


@dataclass(frozen=True)
class TrialRecord:
    """A finished trial. `state`: complete, pruned or failed. `losses`: (epoch, loss) as reported to the pruner."""

    number: int
    params: Mapping[str, Any]
    state: str
    metrics: Mapping[str, float | None]
    losses: Sequence[tuple[int, float]] = ()
