"""`cpb presets`: list the presets, or show what a preset resolves to and what each of its options allows."""

from functools import partial
from typing import Annotated, Any

import typer

from cpbmodels.arch.options import ALIASES, CHOICES, MAX_FEATURES, MAX_MEMBERS, PROFILES, RANGES, SWITCHES
from flows.cli.completion import completing
from flows.cli.ending import Answer, answered
from flows.cli.options import BY_SET
from flows.console import Column, echo, print_table, show
from flows.progress import shown_progress
from schemas.errors import EXIT_COMPLETE, UsageError
from schemas.fleets import base_of
from schemas.presets import (
    PRESET_ABOUT,
    PRESET_ARCHITECTURES,
    SUFFIX,
    is_file,
    one_preset,
    own_presets_folder,
    read_preset,
)
from schemas.run import RunSpec

_LISTED = 4  # names of a list that a cell of the table holds


@answered
def presets(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="a preset, or your own file (NAME.toml)",
            autocompletion=completing("preset"),
        ),
    ] = None,
    architectures: Annotated[
        str | None,
        typer.Option(
            "--architectures",
            "--arch",
            help="as in gru,har; default: those that the preset trains",
            autocompletion=completing("architectures"),
        ),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile",
            help=RunSpec.model_fields["profile"].description,
            autocompletion=completing("profile", ("auto", *PROFILES)),
        ),
    ] = None,
) -> Answer:
    """List the presets, or show every option of one: its value, what is allowed, what differs from the built-in value.

    Example: cpb presets seed-gru
    """
    options = (("architectures", architectures), ("profile", profile))
    given = {option: value for option, value in options if value is not None}
    if name is None and given:
        option = next(iter(given))
        raise UsageError(
            f"{option}: of which preset? Name it, as in `cpb presets default`", code="preset", field=option
        )
    with shown_progress("presets", "reading the options"):
        answer = {"presets": listed()} if name is None else explained(name, given)
    shown = partial(_print_list if name is None else _print_explained, answer)
    return Answer(answer | {"exit": EXIT_COMPLETE}, shown)


def listed() -> list[dict[str, Any]]:
    """Return the presets, built in and in HOME/presets: what each trains and is for; `problem`: why it is refused."""
    found = []
    for name in (*PRESET_ARCHITECTURES, *map(str, sorted(own_presets_folder().glob(f"*{SUFFIX}")))):
        one: dict[str, Any] = {"name": name, "trains": [], "about": "", "problem": None}
        # A file that is refused is listed with the reason, for which `--preset NAME` fails too.
        try:
            one |= {
                "trains": [fleet.architecture for fleet in RunSpec(preset=name).fleets],
                "about": _about(name),
            }
        except UsageError as error:
            one["problem"] = str(error)
        found.append(one)
    return found


def _print_list(answer: dict[str, Any]) -> None:
    print_presets(answer["presets"])
    folder = own_presets_folder()
    echo(f"your own: NAME{SUFFIX} in {folder}; `cpb presets NAME` shows every option of one")


def print_presets(found: list[dict[str, Any]]) -> None:
    """Print the presets that `listed` returned."""
    columns = (
        Column("preset", "name", stays=True),
        Column("trains", "trains", stays=True, folds=True),
        Column("what for", "about", stays=True, folds=True),
    )
    rows = [
        one | {"trains": ", ".join(one["trains"]) or None, "about": one["problem"] or one["about"]}
        for one in found
    ]
    print_table("", columns, rows)


def explained(name: str, given: dict[str, str]) -> dict[str, Any]:
    """Return what a preset resolves to, as a run with the options given (`architectures`, `profile`) would train it.

    `resolved`: architecture -> option -> value; `without_effect`: architecture -> options that it does not read;
    `differs`: architecture -> options with another value than the `built_in` one; `by_timeframe`: architecture ->
    timeframe -> options with another value there, of an average its members'; `allowed`: option -> `range`, both ends
    included, `choices`, or how many `names`; `run`: the fields of a run that `--set` sets, too.

    Raises:
        UsageError: a run would refuse it, with the same sentence.
    """
    import cpbmodels
    from cpbmodels.arch.presets import by_timeframe

    name = one_preset(name, f"name one, as in `cpb presets {name.split(',')[0].strip()}`", field="name")
    spec = RunSpec(preset=name, **given)
    built_in = cpbmodels.Preset().as_dict()
    # `auto` depends on the machine: what it sets is no property of the preset.
    profile = None if spec.profile == "auto" else spec.profile
    presets = {
        fleet.architecture: cpbmodels.preset(
            fleet.preset, base_of(fleet.architecture), profile, **fleet.overrides
        )
        for fleet in spec.fleets
    }
    resolved = {architecture: preset.as_dict() for architecture, preset in presets.items()}
    return {
        "name": name,
        "about": _about(name),
        "base": spec.fleets[0].preset if is_file(name) else None,
        "profile": profile,
        "copies": {fleet.architecture: fleet.seeds for fleet in spec.fleets},
        "resolved": resolved,
        "without_effect": {
            architecture: [
                option
                for option in built_in
                if cpbmodels.without_effect(preset, base_of(architecture), [option])
            ]
            for architecture, preset in presets.items()
        },
        "differs": {
            architecture: [option for option, value in values.items() if value != built_in[option]]
            for architecture, values in resolved.items()
        },
        "by_timeframe": {
            fleet.architecture: {
                timeframe: own
                for timeframe, values in by_timeframe(
                    fleet.preset, base_of(fleet.architecture), presets[fleet.architecture].members
                ).items()
                if (own := {name: value for name, value in values.items() if name not in fleet.overrides})
            }
            for fleet in spec.fleets
        },
        "built_in": built_in,
        "allowed": _limits(built_in),
        "aliases": dict(ALIASES),
        "run": {field: _of_a_run(field) for field in BY_SET},
    }


def _about(name: str) -> str:
    return PRESET_ABOUT[name] if name in PRESET_ABOUT else read_preset(name).about


def _limits(options: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return what each field of the model preset may be."""
    allowed: dict[str, dict[str, Any]] = {name: {"range": [*limits]} for name, limits in RANGES.items()}
    allowed |= {name: {"choices": [*choices]} for name, choices in CHOICES.items()}
    allowed |= {name: {"choices": [True, False]} for name in SWITCHES}
    for name, least, most in (("features", 1, MAX_FEATURES), ("calendar", 0, 1), ("members", 0, MAX_MEMBERS)):
        allowed[name] = {"names": [least, most]}
    return {name: allowed[name] for name in options}


def _of_a_run(field: str) -> dict[str, Any]:
    """Return the default of a run's field and what it may be."""
    # From the schema, in which pydantic has all limits of a field in one form.
    declared = RunSpec.model_json_schema()["properties"][field]
    limits = {"at_least": declared.get("minimum"), "above": declared.get("exclusiveMinimum")}
    allowed = {name: limit for name, limit in limits.items() if limit is not None}
    if choices := declared.get("enum") or ([True, False] if declared["type"] == "boolean" else None):
        allowed["choices"] = choices
    return {"default": declared["default"], "allowed": allowed}


def _print_explained(answer: dict[str, Any]) -> None:
    base = f" (a change of {answer['base']})" if answer["base"] else ""
    about = f": {answer['about']}" if answer["about"] else ""
    show(f"{answer['name']}{base}{about}")
    copies = ", ".join(f"{name} {number}" for name, number in answer["copies"].items())
    show(f"copies of each model that are averaged: {copies}")
    if answer["profile"]:
        show(f"with the hardware profile {answer['profile']}")
    else:
        show("a run adds its hardware profile; --profile NAME shows what that sets")
    rows = [
        {
            "option": option,
            "value": _values(answer, option),
            "allowed": _allowed(answer["allowed"][option]),
            "built_in": _text(built_in),
            "also": ", ".join(alias for alias, field in answer["aliases"].items() if field == option),
        }
        for option, built_in in answer["built_in"].items()
    ]
    for field, one in answer["run"].items():
        default = _text(one["default"])
        rows.append({"option": field, "value": default, "allowed": _allowed(one["allowed"])})
        rows[-1] |= {"built_in": default, "also": ""}
    columns = (
        Column("option", "option", stays=True),
        Column("value", "value", stays=True, folds=True),
        Column("allowed", "allowed", stays=True, folds=True),
        Column("built in", "built_in"),
        Column("also called", "also"),
    )
    print_table("", columns, rows)
    show(
        "* differs from the built-in value. Each is set by its name, --batch-size 64, or by --set batch_size=64"
    )


def _values(answer: dict[str, Any], option: str) -> str:
    """Return an option's value; where architectures differ, each value with its architectures, the commonest last."""
    groups: dict[str, list[str]] = {}
    for architecture, values in answer["resolved"].items():
        text = _text(values[option]) + (" *" if option in answer["differs"][architecture] else "")
        for timeframe, changed in answer["by_timeframe"][architecture].items():
            text += f" (at {timeframe} {_text(changed[option])})" if option in changed else ""
        if option in answer["without_effect"][architecture]:
            text = "not read"
        groups.setdefault(text, []).append(architecture)
    # The value of most architectures stands last, as "others": the exceptions are what a reader looks for.
    *rare, (common, names) = sorted(groups.items(), key=lambda group: len(group[1]))
    last = common if not rare else f"others {common}" if len(names) > 1 else f"{names[0]} {common}"
    return "; ".join([*(f"{', '.join(names)} {text}" for text, names in rare), last])


def _text(value: Any) -> str:
    """Return a value as it is typed on the command line; a long list as its length."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return ",".join(value) or "none" if len(value) <= _LISTED else f"{len(value)} names"
    return f"{value:.10g}" if isinstance(value, float) else str(value) or "none"


def _allowed(limits: dict[str, Any]) -> str:
    if "choices" in limits:
        return ", ".join(map(_text, limits["choices"]))
    for kind, unit in (("range", ""), ("names", " names")):
        if kind in limits:
            low, high = (f"{limit:,}" if isinstance(limit, int) else f"{limit:g}" for limit in limits[kind])
            return f"{low} to {high}{unit}"
    return ", ".join(f"{name.replace('_', ' ')} {limit:g}" for name, limit in limits.items())
