"""Options of the command line, generated from the specifications that declare them (`schemas/run.py`).

    @cli_options(ScopeSpec)
    def forecast(spec: ScopeSpec, json: Json = False) -> None: ...

gives the command `--coins`, `--timeframes` and so on, with the fields' descriptions and defaults. Typer receives all of
them as texts (or switches), so that the specification reports an invalid value instead of the parser.
"""

import inspect
import json
from collections.abc import Callable, Collection
from functools import wraps
from typing import Annotated, Any, TypeVar, get_args

import typer
from pydantic.fields import FieldInfo

from flows.console import shown_progress
from schemas.errors import UsageError
from schemas.scope import Spec

Json = Annotated[bool, typer.Option("--json", help="one JSON object on stdout, as the last line")]

S = TypeVar("S", bound=Spec)

OVERRIDES = "overrides"
"""The field for options of the model preset: `--set NAME=VALUE`."""

BY_SET = ("seed", "dtype", "kernels", "train_timeout_s")
"""Fields of a specification that `--set` sets too, instead of an option each."""

_PANELS = {
    "Which data": (
        "coins", "timeframes", "market", "source", "columns", "decimal", "rewrite", "since", "as_of", "tail", "offline",
    ),
    "Which models": ("architectures", "preset", "seeds", "serving", "overrides", "max_epochs", "baselines"),
    "Periods": ("folds", "check_lookahead"),
    "Search": ("trials", "budget", "search"),
    "How it trains": ("device", "profile", "engine"),
    "What becomes of it": ("repo", "force", "prune", "wandb", "gate", "out"),
}  # fmt: skip
"""Panel of the help -> the specification fields in it; all other options are in the panel `Options`."""

_PANEL_OF = {field: panel for panel, fields in _PANELS.items() for field in fields}

_POSITIONAL = {
    "coin": ("coins", "BTC or BTCUSDT, the same as --coins"),
    "timeframe": ("timeframes", "a Binance interval, the same as --timeframes"),
}
"""The arguments of `cpb COMMAND [COIN [TIMEFRAME]]`, each with the field that it gives and its help."""


def cli_options(
    spec: type[S], *, only: Collection[str] = (), without: Collection[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a Typer command the fields of `spec` as options and call it with the built spec as first argument.

    The command's other parameters are unchanged. If it shows the fields `coins` and `timeframes`, these can also be
    given by position.

    Args:
        only, without: fields to show, or to leave at their defaults.
    """
    fields = {n: f for n, f in spec.model_fields.items() if n not in without and (not only or n in only)}
    by_set = [n for n in BY_SET if n in fields]
    arguments = {name: field for name, (field, _) in _POSITIONAL.items() if field in fields}
    parameters = [*map(_argument, arguments)]
    parameters += [_parameter(n, f) for n, f in fields.items() if n not in (*BY_SET, OVERRIDES)]
    if OVERRIDES in fields:
        parameters += _model_parameters(by_set)

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        _, *others = inspect.signature(command).parameters.values()
        parameters_here = [_keyword(p.name, p.annotation, p.default) for p in others]
        signature = inspect.Signature([*parameters, *parameters_here], return_annotation=None)

        @wraps(command)
        def run(**given: Any) -> None:
            bound = signature.bind(**given)
            bound.apply_defaults()
            values = {
                p.name: value for p in parameters if (value := bound.arguments.pop(p.name)) != p.default
            }
            for name, field in arguments.items():
                if name in values and field in values:
                    raise UsageError(
                        f"{field} is given twice: {values[name]!r} and --{field} {values[field]}; leave one out",
                        code="twice", field=field,
                    )  # fmt: skip
                if name in values:
                    values[field] = values.pop(name)
            if OVERRIDES in fields:
                settings = [*values.pop(OVERRIDES, ())]
                if "max_epochs" in values:
                    settings.append(f"epochs={values.pop('max_epochs')}")
                overrides = _settings(settings)
                values |= {name: overrides.pop(name) for name in by_set if name in overrides}
                values[OVERRIDES] = overrides
            # Importing the architectures takes a second.
            with shown_progress(_dashed(command.__name__), "reading the options"):
                made = spec(**values)
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


def _settings(given: Collection[str]) -> dict[str, Any]:
    """Return the options of the model preset by their names; `max_epochs` and other aliases give the field's name."""
    from cpbmodels.arch.options import ALIASES

    settings: dict[str, Any] = {}
    for text in given:
        name, _, value = text.partition("=")
        field = name.strip().replace("-", "_")
        field = ALIASES.get(field, field)
        problem = ""
        if not field or "=" not in text:
            problem = f"--set {text!r} is not NAME=VALUE, as in --set epochs=5"
        if field in settings:
            problem = f"--set {field} is given twice; leave one out"
        if problem:
            raise UsageError(problem, code="overrides", field=OVERRIDES)
        settings[field] = parse_value(value)
    return settings


def _parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    names = [f"--{_dashed(name)}", *(["--arch"] if name == "architectures" else [])]
    kinds = {field.annotation, *get_args(field.annotation)}
    option = typer.Option(
        *names,
        help=field.description,
        metavar="<int>" if int in kinds else None,
        rich_help_panel=_PANEL_OF.get(name),
    )
    if bool in kinds:
        return _keyword(name, Annotated[bool, option], field.default)
    default = None if field.default is None else str(field.default)
    return _keyword(name, Annotated[str | None, option], default)


def _argument(name: str) -> inspect.Parameter:
    argument = typer.Argument(help=_POSITIONAL[name][1], metavar=name.upper(), show_default=False)
    return _keyword(name, Annotated[str | None, argument], None)


def _model_parameters(by_set: Collection[str]) -> list[inspect.Parameter]:
    about = f"a field of the model preset, as in epochs=5, or {', '.join(by_set)}; may be repeated"
    panel = _PANEL_OF[OVERRIDES]
    setting = typer.Option("--set", metavar="NAME=VALUE", help=about, rich_help_panel=panel)
    epochs = typer.Option(
        "--max-epochs", metavar="<int>", help="the same as --set epochs=", rich_help_panel=panel
    )
    return [
        _keyword(OVERRIDES, Annotated[list[str] | None, setting], None),
        _keyword("max_epochs", Annotated[str | None, epochs], None),
    ]


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
