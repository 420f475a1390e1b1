"""Presets: every option of a model and its training, resolved. A preset is a set of changes to the defaults.

Options that have no effect on an architecture, so that they can be reported instead of misleading the user. Apart from
`options`, because it asks the architectures, which read those.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from cpbmodels.arch import architectures, every, find
from cpbmodels.arch.options import ALIASES, COMMON_PRESETS, PROFILES, SIZES, Preset, check, normalise_options
from cpbmodels.errors import ModelError, unknown_choice

EMBEDDED_CALENDAR_DIM = 12  # width of the hour's embedding if `calendar_dim` 0 has no effect on the head

TRAINING_OPTIONS = ("batch_size", "epochs", "patience", "lr", "mixed_precision")
"""Options of gradient steps: a closed form has none."""


def preset(
    name: str = "default",
    architecture: str = "har",
    profile: str | None = None,
    timeframe: str = "",
    **overrides: Any,
) -> Preset:
    """The resolved preset: architecture defaults <- preset <- what it has at this timeframe alone <- hardware profile
    <- fixed options <- overrides, checked.

    An override of a fixed option that the architecture cannot have is refused by `check_together`. `timeframe`: a
    Binance interval, as "15m"; without one, the options are those of any timeframe that the preset does not name.

    Raises ModelError with one sentence naming the option and what is allowed. Imports the architecture, and torch.
    """
    if architecture not in architectures():
        raise ModelError(unknown_choice("architecture", architecture, architectures()))
    spec = find(architecture).spec
    presets = {**COMMON_PRESETS, **spec.presets}
    if profile is not None and profile not in PROFILES:
        raise ModelError(unknown_choice("profile", profile, PROFILES))
    if name not in presets:
        if name not in (known := all_presets()):
            raise ModelError(unknown_choice("preset", name, known))
        owners = " or ".join(owner for owner, kind in every().items() if name in kind.spec.presets)
        own = " or ".join(map(repr, ("default", *spec.presets)))
        raise ModelError(f"preset {name!r} belongs to {owners}: use preset {own} with {architecture}.")
    values = {
        **spec.defaults,
        **presets[name],
        **spec.by_timeframe.get((name, timeframe), {}),
        **PROFILES.get(profile or "", {}),
        **spec.fixed,
    }
    options = check(replace(Preset(), **values | normalise_options(overrides)))
    check_together(architecture, options)
    # torch: readers of this module's data must not have to import it
    if options.members:
        from cpbmodels.arch.line import combined

        return combined(options, [*of_members(name, options, profile, timeframe, **overrides).values()])
    from cpbmodels.arch.heads import HEADS

    if options.calendar and not options.calendar_dim and not HEADS[options.head].has_log_scale:
        return replace(options, calendar_dim=EMBEDDED_CALENDAR_DIM)
    return options


def of_members(
    name: str, options: Preset, profile: str | None = None, timeframe: str = "", **overrides: Any
) -> dict[str, Preset]:
    """The resolved preset of each architecture that an average of these options trains; empty of any other model.

    Args:
        name, profile, timeframe, overrides: those of the average, as in `preset`.
    """
    shared = {option: value for option, value in overrides.items() if option != "members"}
    return {member: preset(name, member, profile, timeframe, **shared) for member in options.members}


def by_timeframe(name: str, architecture: str, members: Iterable[str] = ()) -> dict[str, dict[str, Any]]:
    """The options that a preset has at single timeframes alone, by timeframe; of an average, those of its members."""
    options: dict[str, dict[str, Any]] = {}
    for one in members or (architecture,):
        for (owner, timeframe), values in find(one).spec.by_timeframe.items():
            if owner == name:
                options.setdefault(timeframe, {}).update(values)
    return options


def check_together(architecture: str, options: Preset) -> None:
    """Raise ModelError if options are valid individually but not together, or not with this architecture."""
    if unknown := [name for name in options.members if name not in architectures()]:
        raise ModelError(unknown_choice("member", unknown[0], architectures()))
    if options.members and architecture != "average":
        raise ModelError(f"members applies only to average, not to {architecture}: leave it out.")
    if conflict := _head_conflict(architecture, options) or find(architecture).conflict(
        architecture, options
    ):
        raise ModelError(conflict)


def all_presets() -> Mapping[str, Mapping[str, Any]]:
    """Every preset by name: those for all architectures, then those that belong to some."""
    kinds = every().values()
    return {
        **COMMON_PRESETS,
        **{name: values for kind in kinds for name, values in kind.spec.presets.items()},
    }


def _head_conflict(architecture: str, options: Preset) -> str:
    """A reserved head and the architectures that fix it belong together, with the options that the head requires."""
    from cpbmodels.arch.heads import HEADS

    fixed = find(architecture).spec.fixed.get("head")
    if fixed is None and not HEADS[options.head].is_reserved:
        return ""
    head, owners = fixed or options.head, [architecture]
    required = HEADS[head].required_options
    if fixed is None:
        owners = [name for name, kind in every().items() if kind.spec.fixed.get("head") == head]
    elif options.head == fixed and all(getattr(options, name) == value for name, value in required.items()):
        return ""
    conditions = ", ".join(f"{name} {value}" for name, value in required.items())
    named = f"head {head!r} (with {conditions})" if required else f"head {head!r}"
    return f"{named} and architecture {' or '.join(map(repr, owners))} belong together."


def reads(architecture: str, option: str) -> bool:
    """Whether an option can have an effect on an architecture: of the sizes those it declares, of gradient steps none
    if it has a closed form.
    """
    spec = find(architecture).spec
    if option in SIZES:
        return option in spec.sizes
    return not (spec.closed_form and option in TRAINING_OPTIONS)


def _readers(size: str) -> list[str]:
    """The architectures that read a size themselves; an average does if its members do."""
    return [
        name for name, kind in every().items() if reads(name, size) and "members" not in kind.spec.defaults
    ]


def fixes(architecture: str, option: str) -> bool:
    """Whether an option is fixed by an architecture, or by each that an average has as its members."""
    spec = find(architecture).spec
    return all(option in find(name).spec.fixed for name in spec.defaults.get("members", (architecture,)))


def without_effect(options: Preset, architecture: str, given: Iterable[str]) -> list[str]:
    """A sentence for each option among the names `given` that changes nothing for this architecture."""
    spec = find(architecture).spec
    trained = options.members or (architecture,)  # an average reads what its members read
    read = [size for size in SIZES if any(reads(name, size) for name in trained)]
    names = [ALIASES.get(name, name) for name in given]
    sentences = [
        f"{name} has no effect on {architecture}, which reads {', '.join(read) or 'none of this kind'}: leave it out, "
        f"or train an architecture that reads it: {', '.join(_readers(name))}."
        for name in names
        if name in SIZES and name not in read
    ]
    if spec.closed_form:
        solved = f"has no effect on {architecture}, which has a closed-form solution: leave it out."
        sentences += [f"{name} {solved}" for name in names if name in TRAINING_OPTIONS]
    if "dropout" in names and options.n_layers == 1 and spec.dropout_between_layers:
        sentences.append(
            f"dropout has no effect on {architecture} with n_layers 1, it acts between layers: "
            "leave it out or choose n_layers from 2 to 16."
        )
    return sentences


def default_preset(architecture: str, profile: str | None = None) -> Preset:
    """The preset an architecture is trained with when none is named: its seed preset, or the default."""
    return preset(find(architecture).spec.default_preset, architecture, profile)
