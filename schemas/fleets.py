"""The fleets that a run's options name, and what each of them trains."""

import json
import shlex
from collections.abc import Collection, Mapping
from typing import Any

from pydantic import Field

from cpbmodels.arch.options import HOW_IT_RUNS, PROFILE_SIZES
from cpbmodels.errors import ModelError
from schemas.base import Record, names_in
from schemas.errors import UsageError
from schemas.presets import PRESET_ARCHITECTURES, PRESET_COPIES, SEED, PresetFile

UNIVERSAL_SUFFIX = "-universal"
"""Suffix of an architecture that learns all series of a timeframe in a single model, as in `har-universal`."""


class FleetSpec(Record):
    """A fleet that a run trains, before its series are known: all that makes its models, but for the candles.

    `preset`: a built-in preset; `overrides`: what differs from it. `seeds`: how many copies of each model are averaged.
    """

    architecture: str
    preset: str
    overrides: dict[str, Any] = Field(default_factory=dict)
    seeds: int = 1
    dtype: str = "float32"

    @property
    def options(self) -> str:
        """The options of `cpb train-all` that train it: `--architectures gru --preset seed-gru --set epochs=2`."""
        words = ["--architectures", self.architecture, "--preset", self.preset]
        for name, value in self.overrides.items():
            words += ["--set", f"{name}={value if isinstance(value, str) else json.dumps(value)}"]
        if self.dtype != "float32":
            words += ["--set", f"dtype={self.dtype}"]
        if self.seeds != copies_of(self.architecture, self.preset):
            words += ["--seeds", str(self.seeds)]
        return shlex.join(words)


def copies_of(architecture: str, preset: str, asked: int | None = None) -> int:
    """Return how many copies of a model are averaged: those `asked` for, else the preset's.

    1 for a closed form, which has no randomness.
    """
    import cpbmodels

    # copies differ by their seeds alone, and a formula has none
    is_closed = cpbmodels.architecture(base_of(architecture)).closed_form
    return 1 if is_closed else asked or PRESET_COPIES.get(preset, 1)


def fleets_of(
    presets: Mapping[str, PresetFile],
    *,
    architectures: str | None,
    overrides: Mapping[str, Any],
    profile: str,
    seeds: int | None,
    dtype: str,
    timeframes: Collection[str],
) -> tuple[FleetSpec, ...]:
    """Return the fleets that a run trains, from its options (`RunSpec`) and the content of its presets by their names.

    Of each preset its architectures, or of several presets what they have of `architectures`. `overrides` go to each
    preset of which an architecture reads them. Of fleets that train the same models at all of the run's timeframes, as
    two presets may after `overrides`, the first stands.

    Raises:
        UsageError: an architecture is unknown, an option is invalid, none of the fleets reads it, or a preset trains
            nothing but what others train.
    """
    chosen = _architectures(presets, architectures)
    without: dict[str, list[str]] = {name: [] for name in overrides}  # why presets do not take an option
    per_preset: dict[str, list[FleetSpec]] = {}
    for (name, preset), names in zip(presets.items(), chosen, strict=True):
        taken, sentences = _overrides(preset, names, overrides, profile, alone=len(presets) == 1)
        for option, sentence in sentences.items():
            without[option].append(sentence)
        per_preset[name] = [
            FleetSpec(
                architecture=architecture,
                preset=preset.base,
                overrides=taken,
                seeds=copies_of(architecture, preset.base, seeds or preset.seeds),
                dtype=dtype,
            )
            for architecture in names
        ]
    # an option may count for nothing in one preset of several, but not in all of them
    if nowhere := [sentences for sentences in without.values() if len(sentences) == len(presets)]:
        raise UsageError(nowhere[0][0], code="without-effect", field="overrides")
    return _different(per_preset, timeframes)


def _architectures(presets: Mapping[str, PresetFile], asked: str | None) -> list[tuple[str, ...]]:
    """Return the architectures that each preset trains: its own, or those of them that were asked for."""
    own = [preset.architectures or PRESET_ARCHITECTURES[preset.base] for preset in presets.values()]
    if asked is None:
        for names in own:
            _check_architectures(",".join(names), names)
        return own
    wanted = names_in(asked)
    _check_architectures(asked, wanted)
    if len(own) == 1:  # one preset trains whatever architecture is named
        return [wanted]
    chosen = [tuple(name for name in wanted if name in names) for names in own]
    if homeless := [name for name in wanted if not any(name in names for names in own)]:
        raise UsageError(
            f"architectures {asked!r}: none of the presets {','.join(presets)} trains {', '.join(homeless)}; leave it "
            "out, or train it with one preset in a run of its own",
            code="architectures",
        )
    if idle := [name for name, names in zip(presets, chosen, strict=True) if not names]:
        raise UsageError(
            f"architectures {asked!r}: preset {', '.join(idle)} trains none of them; leave the preset out, or add one "
            f"of {', '.join(own[[*presets].index(idle[0])])}",
            code="architectures",
        )
    return chosen


def _overrides(
    preset: PresetFile, architectures: Collection[str], given: Mapping[str, Any], profile: str, *, alone: bool
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the overrides of a preset's fleets, and for each option given that none of them reads, a sentence.

    Explicit options take precedence over the file's, and both over the sizes that a profile sets. Unless the preset is
    `alone` in the run, what each of its architectures fixes and refuses is left to the other presets.
    """
    import cpbmodels  # takes a second if torch is not imported yet

    sizes = PROFILE_SIZES.get(profile, {}) if preset.base.startswith(SEED) else {}
    fixed = {} if alone else _refused_as_fixed(preset, architectures, given)
    merged: dict[str, Any] = {
        **sizes,
        **preset.options,
        **{n: v for n, v in given.items() if n not in fixed},
    }
    without: dict[str, list[str]] = {name: [] for name in merged}
    for architecture in architectures:
        name = base_of(architecture)
        try:
            options = cpbmodels.preset(preset.base, name, **merged)
        except cpbmodels.ModelError as error:
            field = "overrides" if merged else "preset"
            raise UsageError(str(error), code="preset", field=field) from None
        for option, sentences in without.items():
            sentences += cpbmodels.without_effect(options, name, [option])[:1]
    unread = {name: s[0] for name, s in without.items() if len(s) == len(architectures)}
    for name, sentence in unread.items():
        if (
            name not in given
        ):  # of the file or the profile: nobody typed it in this run, so it is the file's mistake
            raise UsageError(sentence, code="without-effect", field="overrides")
    return {name: value for name, value in merged.items() if name not in unread}, unread | fixed


def _refused_as_fixed(
    preset: PresetFile, architectures: Collection[str], given: Mapping[str, Any]
) -> dict[str, str]:
    """Return, of the options given, those that each architecture fixes and refuses with this value: the refusal."""
    import cpbmodels
    from cpbmodels.arch.presets import fixes

    refused = {}
    for option, value in given.items():
        sentences = []
        for name in map(base_of, architectures):
            # one architecture that reads the option is enough: the preset takes it, and names a bad value
            if not fixes(name, option):
                break
            try:
                cpbmodels.preset(preset.base, name, **{option: value})
            except ModelError as error:
                sentences.append(str(error))
        if len(sentences) == len(architectures):
            refused[option] = sentences[0]
    return refused


def _different(per_preset: dict[str, list[FleetSpec]], timeframes: Collection[str]) -> tuple[FleetSpec, ...]:
    """Return the fleets of a run's presets, each with models of its own.

    Raises:
        UsageError: a preset has none.
    """
    trained: dict[str, tuple[str, FleetSpec]] = {}  # what makes the models -> the first that trains them
    for preset, fleets in per_preset.items():
        # by the models, not by the options: two presets may become one by an override of both
        first = {trained.setdefault(_models_of(fleet, timeframes), (preset, fleet))[0] for fleet in fleets}
        if preset not in first:
            raise UsageError(
                f"preset {preset} trains the same models as {', '.join(sorted(first))} in this run; leave it out, or "
                "train it in a run of its own",
                code="preset",
            )
    return tuple(fleet for _, fleet in trained.values())


def _models_of(fleet: FleetSpec, timeframes: Collection[str]) -> str:
    """Return a text that fleets have in common if they train the same models: equal recipes at each timeframe."""
    import cpbmodels
    from cpbmodels.arch.presets import of_members

    decisive = []
    for timeframe in timeframes:
        options = cpbmodels.preset(
            fleet.preset, base_of(fleet.architecture), timeframe=timeframe, **fleet.overrides
        )
        members = of_members(fleet.preset, options, timeframe=timeframe, **fleet.overrides)
        # of an average also what its members are; how a fleet runs, as its batch on the device, makes no other model
        decisive += [
            {name: value for name, value in one.as_dict().items() if name not in HOW_IT_RUNS}
            for one in (options, *members.values())
        ]
    return json.dumps([fleet.model_dump(exclude={"overrides"}), decisive])


def _check_architectures(text: str, names: Collection[str]) -> None:
    """Raise `UsageError` if one of the names in a text is unknown, or there is none."""
    import cpbmodels

    available = cpbmodels.architectures()
    unknown = [name for name in names if base_of(name) not in available]
    if unknown or not names:
        raise UsageError(
            f"architectures {text!r}: unknown {', '.join(unknown) or '(empty)'}; choose from "
            f"{', '.join(available)} (add {UNIVERSAL_SUFFIX} for one model of all coins)",
            code="architectures",
        )


def is_universal(architecture: str) -> bool:
    """Whether a single model is trained on all series of a timeframe."""
    return architecture.endswith(UNIVERSAL_SUFFIX)


def base_of(architecture: str) -> str:
    """Return the architecture's name in `cpbmodels`, without `-universal`."""
    return architecture.removesuffix(UNIVERSAL_SUFFIX)
