"""Options of the command line, generated from the specifications that declare them (`schemas/run.py`).

    @cli_options(ScopeSpec)
    def forecast(spec: ScopeSpec, json: Json = False) -> None: ...

gives the command `--coins`, `--timeframes` and so on, with the fields' descriptions and defaults. Typer receives all of
them as texts (or switches), so that the specification reports an invalid value instead of the parser.

`cpb presets`: list the presets with their purpose, or show every option that a preset resolves to.
"""

import inspect
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from flows.console import Column, emit, print_table, say, shown_progress
from schemas.errors import EXIT_COMPLETE, EXIT_PARTIAL, UsageError
from schemas.run import (
    PRESET_ABOUT,
    PRESET_ARCHITECTURES,
    PRESET_COPIES,
    SUFFIX,
    RunSpec,
    base_of,
    own_presets_folder,
    read_preset,
)
from schemas.scope import Spec

Json = Annotated[bool, typer.Option("--json", help="one JSON object on stdout, as the last line")]

S = TypeVar("S", bound=Spec)

OVERRIDES = "overrides"
"""The field for options of the model preset: `--set NAME=VALUE`, or separate options (`ModelOptions`)."""

BY_SET = ("seed", "dtype", "kernels", "train_timeout_s")
"""Fields of a specification that `--set` sets too, instead of an option each."""

_PANELS = {
    "Which data": ("coins", "timeframes", "market", "source", "since", "as_of", "tail", "offline"),
    "Which models": ("architectures", "preset", "seeds", "serving", "overrides",
                     "baselines"),
    "Periods": ("folds", "check_lookahead"),
    "Search": ("trials", "budget", "search"),
    "How it trains": ("device", "profile", "engine"),
    "What becomes of it": ("repo", "force", "prune", "wandb", "gate", "out"),
}  # fmt: skip
"""Panel of the help -> the specification fields in it; all other options are in the panel `Options`."""

_PANEL_OF = {field: panel for panel, fields in _PANELS.items() for field in fields}

MODEL_PANEL = "Options of the model (default: the preset's)"

_METAVARS = {int: "<int>", float: "<float>"}
_DECLARED: Any = object()  # marks the default declared by the specification


@dataclass(frozen=True)
class Shown:
    """How a command shows a field, if that differs from the field's declaration.

    names: the option's names, `--yes/--no` for a switch. help: as in the command's help.
    """

    names: tuple[str, ...] = ()
    help: str | None = None
    default: Any = _DECLARED


ModelOptions = Mapping[str, tuple[str, str]]
"""Parameter -> the field of the model preset that it sets, and its help; `no_…` is a switch that sets it to False."""

_POSITIONAL = {
    "coin": ("coins", "BTC or BTCUSDT, the same as --coins"),
    "timeframe": ("timeframes", "a Binance interval, the same as --timeframes"),
}
"""The arguments of `cpb COMMAND [COIN [TIMEFRAME]]`, each with the field that it gives and its help."""


def cli_options(
    spec: type[S],
    *,
    only: Collection[str] = (),
    without: Collection[str] = (),
    shown: Mapping[str, Shown] | None = None,
    model_options: ModelOptions | None = None,
    build: Callable[[dict[str, Any]], S] | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a Typer command the fields of `spec` as options and call it with the built spec as first argument.

    The command's other parameters are unchanged.

    If it shows the fields `coins` and `timeframes`, these can also be given by position.

    Args:
        only, without: fields to show, or to leave at their defaults.
        shown: fields that this command shows differently.
        model_options: fields of the model preset with a separate option in addition to `--set`, by parameter name.
        build: creates the spec from the given values; default: the class itself.
    """
    fields = {
        n: f for n, f in spec.model_fields.items() if n not in (*BY_SET, *without) and (not only or n in only)
    }
    by_set = [n for n in BY_SET if n in spec.model_fields and n not in without]
    numbers = [n for n, f in fields.items() if _kind(f.annotation) in _METAVARS]
    others = shown or {}
    parameters = [_parameter(n, f, others.get(n, Shown())) for n, f in fields.items() if n != OVERRIDES]
    arguments = {name: field for name, (field, _) in _POSITIONAL.items() if field in fields}
    parameters = [*map(_argument, arguments), *parameters]
    if OVERRIDES in fields:
        parameters += _model_parameters(by_set, model_options)

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        _, *given_here = inspect.signature(command).parameters.values()
        own = [_keyword(p.name, p.annotation, p.default) for p in given_here]
        signature = inspect.Signature([*parameters, *own], return_annotation=None)

        @wraps(command)
        def run(**given: Any) -> None:
            bound = signature.bind(**given)
            bound.apply_defaults()
            values = {p.name: bound.arguments.pop(p.name) for p in parameters}
            for name, field in arguments.items():
                if (given_first := values.pop(name)) is None:
                    continue
                if values[field] != signature.parameters[field].default:
                    raise UsageError(
                        f"{field} is given twice: {given_first!r} and --{field} {values[field]}; leave one out",
                        code="twice", field=field,
                    )  # fmt: skip
                values[field] = given_first
            values |= {n: parse_value(values[n]) for n in numbers if isinstance(values[n], str)}
            if OVERRIDES in fields:
                values[OVERRIDES] = _overrides(values, model_options)
                for name in values[OVERRIDES].keys() & {*by_set}:
                    values[name] = values[OVERRIDES].pop(name)
            # Importing the architectures takes a second.
            with shown_progress(_dashed(command.__name__), "reading the options"):
                made = build(values) if build else spec(**values)
            command(made, **bound.arguments)

        run.__dict__["__signature__"] = signature
        run.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()} | {"return": None}
        return run

    return decorate


def parse_value(text: str) -> Any:
    """Return the JSON value of a text, or the text itself if it is not JSON: `5`, `0.1`, `false`, `quantile`."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # also for thousands of digits or brackets
        return text


def _overrides(values: dict[str, Any], options: ModelOptions | None) -> dict[str, Any]:
    """Remove the model options from `values` and return them by the names of the preset's fields."""
    overrides = _settings(values.pop(OVERRIDES) or ())
    for name, (field, _) in (options or {}).items():
        if not (value := values.pop(name)):
            continue
        if field in overrides:
            raise UsageError(
                f"overrides: {field} is given twice, by its own option and by --set; leave one out",
                code="overrides", field=OVERRIDES,
            )  # fmt: skip
        overrides[field] = False if value is True else parse_value(value)
    return overrides


def _settings(given: Sequence[str]) -> dict[str, Any]:
    from cpbmodels.arch.options import ALIASES

    found: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise UsageError(
                f"overrides {text!r} is not NAME=VALUE, as in epochs=5", code="overrides", field=OVERRIDES
            )
        field = name.strip().replace("-", "_")
        field = ALIASES.get(field, field)
        if field in found:
            raise UsageError(
                f"overrides: {field} is given twice by --set; leave one out",
                code="overrides",
                field=OVERRIDES,
            )
        found[field] = parse_value(value)
    return found


def _parameter(name: str, field: FieldInfo, shown: Shown) -> inspect.Parameter:
    kind, default = _kind(field.annotation), field.default if shown.default is _DECLARED else shown.default
    text, metavar = shown.help or field.description, _METAVARS.get(kind)
    dashed = _dashed(name)
    if kind is bool:
        names = shown.names or (f"--{dashed}/--no-{dashed}" if default else f"--{dashed}",)
        switch = typer.Option(*names, help=text, rich_help_panel=_PANEL_OF.get(name))
        return _keyword(name, Annotated[bool, switch], default)
    option = typer.Option(
        *(shown.names or (f"--{dashed}",)), help=text, metavar=metavar, rich_help_panel=_PANEL_OF.get(name),
        autocompletion=_completion(_choices(field)),
    )  # fmt: skip
    if default is None:
        return _keyword(name, Annotated[str | None, option], None)
    return _keyword(name, Annotated[str, option], str(default))


def _argument(name: str) -> inspect.Parameter:
    argument = typer.Argument(help=_POSITIONAL[name][1], metavar=name.upper(), show_default=False)
    return _keyword(name, Annotated[str | None, argument], None)


def _choices(field: FieldInfo) -> tuple[str, ...]:
    """Return the values listed in a field's declaration; empty if other values are allowed too."""
    kinds = (field.annotation, *get_args(field.annotation))
    listed = (get_args(kind) for kind in kinds if get_origin(kind) is Literal)
    extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    return next(listed, tuple(str(choice) for choice in cast(list[str], extra.get("enum", ()))))


def _completion(choices: Sequence[str]) -> Callable[[str], list[str]] | None:
    """Return the completions for a shell."""
    if not choices:
        return None

    def complete(incomplete: str) -> list[str]:
        return [choice for choice in choices if choice.startswith(incomplete)]

    return complete


def _model_parameters(by_set: Sequence[str], options: ModelOptions | None) -> list[inspect.Parameter]:
    about = f"a field of the model preset, as in epochs=5, or {', '.join(by_set)}; may be repeated"
    setting = typer.Option("--set", metavar="NAME=VALUE", help=about, rich_help_panel=_PANEL_OF[OVERRIDES])
    parameters = [_keyword(OVERRIDES, Annotated[list[str] | None, setting], None)]
    for name, (_, text) in (options or {}).items():
        kind: Any = bool if name.startswith("no_") else str
        option = typer.Option(
            f"--{_dashed(name)}",
            help=text,
            metavar=None if kind is bool else "<int>",
            rich_help_panel=MODEL_PANEL,
        )
        parameters.append(_keyword(name, Annotated[kind | None, option], None))
    return parameters


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _kind(annotation: Any) -> Any:
    """Return the plain type behind a field's annotation: `int` of `int | None`, `str` of a `Literal`."""
    if get_origin(annotation) in (Union, UnionType):
        return _kind(next(part for part in get_args(annotation) if part is not NoneType))
    return str if get_origin(annotation) is Literal else annotation


_LIST = (Column("preset", text=True, stays=True), Column("trains", text=True, stays=True, folds=True), Column("copies"),
         Column("what for", text=True, folds=True))  # fmt: skip


def presets(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[PRESET]", help="a preset to explain: every option that it resolves to"),
    ] = None,
    json: Json = False,
) -> None:
    """List the presets, built in and in HOME/presets, or explain a preset (a name, or a file NAME.toml).

    Example: cpb presets smoke
    """
    if name is not None:
        import cpbmodels

        spec = RunSpec(preset=name)
        resolved = {
            architecture: cpbmodels.preset(spec.preset, base_of(architecture), **spec.overrides).as_dict()
            for architecture in spec.names
        }
        if json:
            emit({"name": name, "resolved": resolved, "exit": EXIT_COMPLETE})
        else:
            columns = [Column(head, text=True, stays=True, folds=True) for head in ("option", *resolved)]
            options = zip(*(option.items() for option in resolved.values()), strict=True)
            rows = [[cells[0][0], *(_short(value) for _, value in cells)] for cells in options]
            print_table(name, columns, rows)
        return
    names = [*PRESET_ARCHITECTURES, *map(str, sorted(own_presets_folder().glob(f"*{SUFFIX}")))]
    listed = [_described(preset) for preset in names]
    code = EXIT_PARTIAL if any(preset["problem"] for preset in listed) else EXIT_COMPLETE
    if json:
        emit({"presets": listed, "folder": str(own_presets_folder()), "exit": code})
    else:
        rows = [
            [p["name"], ", ".join(p["architectures"]), str(p["seeds"]), p["problem"] or p["about"]]
            for p in listed
        ]
        print_table("", _LIST, rows)
        say(f"your own: NAME{SUFFIX} in {own_presets_folder()}, or any path; docs/tuning.md has the format")
    raise typer.Exit(code)


def _described(name: str) -> dict[str, Any]:
    """Return what a preset is for and trains; `problem`: the message with which a run rejects it."""
    from cpbmodels.arch.presets import all_presets

    try:
        spec = RunSpec(preset=name)
        about = PRESET_ABOUT.get(name) or read_preset(name).about
    except UsageError as error:
        return {
            "name": name,
            "about": "",
            "architectures": [],
            "seeds": 0,
            "options": {},
            "problem": str(error),
        }
    return {
        "name": name, "about": about, "architectures": list(spec.names),
        "seeds": spec.seeds or PRESET_COPIES.get(spec.preset, 1),
        "options": spec.overrides or dict(all_presets().get(name, {})), "problem": None,
    }  # fmt: skip


def _short(value: Any) -> str:
    return f"{len(value)} columns" if isinstance(value, tuple) and len(value) > 3 else str(value)
