"""Options of the command line, generated from the specifications that declare them (`schemas/`).

    @cli_options(ScopeSpec)
    def forecast(spec: ScopeSpec) -> Answer: ...

gives the command `--coins`, `--timeframes` and so on, with the fields' descriptions and defaults. Typer receives all of
them as texts (or switches), so that the specification reports an invalid value instead of the parser.

A command that trains also takes every option of a model by its name: `--NAME VALUE`, where NAME is a field of the
model preset (`cpbmodels.arch.options.Preset`), another name of one (`ALIASES`) or one of `BY_SET`, is
`--set NAME=VALUE`. They are made from these lists and hidden in the help, which names the commonest.
"""

import inspect
import json
import shlex
from collections import deque
from collections.abc import Callable, Collection, Iterator
from functools import wraps
from typing import Annotated, Any, TypeVar, get_args

import typer
from pydantic.fields import FieldInfo
from typer.core import TyperCommand, TyperOption

from cpbmodels.arch.options import ALIASES, CHOICES, SWITCHES, Preset
from flows.cli.completion import completing
from flows.progress import shown_progress
from schemas.base import Spec, parse_value
from schemas.errors import UsageError
from schemas.identity import APART
from schemas.scope import ScopeSpec
from tasks.storage.urls import public_url

R = TypeVar("R")
S = TypeVar("S", bound=Spec)

OVERRIDES = "overrides"
"""The field for options of the model preset: `--set NAME=VALUE`."""

FILES = "preset_files"
"""The field for what the preset files contain, which `--preset` names."""

BY_SET = ("seed", "dtype", "kernels", "train_timeout_s")
"""Fields of a specification that are set like those of the model preset, by `--set` or by their name."""

_TRUTH = ("true", "false", "on", "off", "yes", "no", "1", "0")
ON_OFF: dict[str, tuple[str, ...]] = {
    **dict.fromkeys((*SWITCHES, "kernels"), _TRUTH),
    "mixed_precision": tuple(dict.fromkeys((*_TRUTH, *CHOICES["mixed_precision"]))),
}
"""Names whose option needs no value: `--NAME` is true, `--no-NAME` false. These words are its value if they follow,
also those that the field refuses: nobody means a coin by them."""

COMMONEST = (
    "--epochs",
    "--batch-size",
    "--lr",
    "--hidden-dim",
    "--n-layers",
    "--dropout",
    "--context",
    "--no-mixed-precision",
)
"""Options of models that the help names."""

ALSO = {"architectures": "--arch", "wandb": "--use-wandb"}
"""Fields of a specification with a second option."""

_PANELS = {
    "Which data": (
        "coins",
        "timeframes",
        "market",
        "source",
        "columns",
        "decimal",
        "rewrite",
        "since",
        "as_of",
        "tail",
        "offline",
    ),
    "Which prices": ("touch", "target", "stop", "above", "stop_chance"),
    "Which models": ("architectures", "preset", "seeds", "serving", "overrides", "baselines"),
    "Periods": ("folds", "check_lookahead"),
    "Search": ("trials", "budget", "search"),
    "How it trains": ("device", "profile", "engine"),
    "What becomes of it": ("repo", "space", "private", "force", "prune", "wandb", "gate", "out"),
}
"""Panel of the help -> the specification fields in it; all other options are in the panel `Options`."""

_PANEL_OF = {field: panel for panel, fields in _PANELS.items() for field in fields}

_POSITIONAL = {
    "coin": ("coins", "BTC or BTCUSDT, the same as --coins"),
    "timeframe": ("timeframes", "a Binance interval, the same as --timeframes"),
}
"""The arguments of `cpb COMMAND [COIN [TIMEFRAME]]`, each with the field that it gives and its help."""

_DASHES = "-\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe58\ufe63\uff0d"
"""The hyphen, and what looks like it."""

_SET, _UNSET = "set_", "unset_"
"""Before the name of a model's option: the parameter with its values, and the one that counts `--no-NAME`."""


def cli_options(
    spec: type[S], *, only: Collection[str] = (), without: Collection[str] = ()
) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Give a Typer command the fields of `spec` as options and call it with the built spec as first argument.

    The command's other parameters are unchanged. If it shows the fields `coins` and `timeframes`, these can also be
    given by position.

    Args:
        only, without: fields to show, or to leave at their defaults.
    """
    # The content of preset files is read by the names in `preset`: nobody types it.
    without = {*without, FILES}
    fields = {n: f for n, f in spec.model_fields.items() if n not in without and (not only or n in only)}
    by_set = [n for n in BY_SET if n in fields]
    arguments = {name: field for name, (field, _) in _POSITIONAL.items() if field in fields}
    parameters = [*map(_argument, arguments)]
    parameters += [_parameter(n, f) for n, f in fields.items() if n not in (*BY_SET, OVERRIDES)]
    if OVERRIDES in fields:
        parameters += _model_parameters(by_set)

    def decorate(command: Callable[..., R]) -> Callable[..., R]:
        _, *others = inspect.signature(command).parameters.values()
        parameters_here = [_keyword(p.name, p.annotation, p.default) for p in others]
        signature = inspect.Signature([*parameters, *parameters_here], return_annotation=None)

        @wraps(command)
        def run(**given: Any) -> R:
            bound = signature.bind(**given)
            bound.apply_defaults()
            # Only what differs from the default: a specification may replace a default, but never a choice
            # (`--source` with tables sets coins and timeframes that were not given).
            values = {
                p.name: value for p in parameters if (value := bound.arguments.pop(p.name)) != p.default
            }
            for name, field in arguments.items():
                if name in values and field in values:
                    raise UsageError(
                        f"{field} is given twice: {values[name]!r} and --{field} {values[field]}; leave one out",
                        code="twice",
                        field=field,
                    )
                if name in values:
                    values[field] = values.pop(name)
            if OVERRIDES in fields:
                overrides = _settings(values)
                # Typed like options of a model, but fields of the run.
                values |= {name: overrides.pop(name) for name in by_set if name in overrides}
                values[OVERRIDES] = overrides
            with shown_progress(_dashed(command.__name__), "reading the options"):
                if OVERRIDES in fields:
                    _check_coins(values)
                made = spec(**values)
            return command(made, **bound.arguments)

        run.__dict__["__signature__"] = signature
        run.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()} | {"return": None}
        return run

    return decorate


class Command(TyperCommand):
    """A command whose options may include those of a model, by their names."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Give the options of `ON_OFF` that stand without a value the value true, then let Typer parse all."""
        options = {text: param for param in self.params for text in (*param.opts, *param.secondary_opts)}
        words = {f"--{_dashed(name)}": values for name, values in ON_OFF.items()}
        left, parsed = deque(args), []
        while left:
            word = left.popleft()
            parsed.append(word)
            if word == "--":  # what follows are arguments
                break
            if word[:1] != "-" and (typed := word.lstrip(_DASHES)) != word:
                raise UsageError(
                    f"{word!r} begins with a dash that is no hyphen, as word processors and pages make of --; type "
                    f"--{typed.replace('_', '-')}",
                    code="usage",
                    field=word,
                )
            option = options.get(word)  # none for a word with `=`, and for what Typer will refuse
            if option is None or getattr(option, "is_flag", False) or getattr(option, "count", False):
                continue
            # Compared without case: `AUTO` is refused as a value instead of becoming the coin of that name.
            if word in words and not (left and left[0].casefold() in words[word]):
                parsed[-1] = f"{word}=true"
            elif left:  # its value, whatever it looks like
                parsed.append(left.popleft())
        try:
            return super().parse_args(ctx, [*parsed, *left])
        except typer.TyperException as error:
            if hasattr(error, "ctx"):  # of some errors nobody notes the command whose help has the option
                error.ctx = error.ctx or ctx
            raise

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words of the usage; an argument that must be given stands there without Typer's braces."""
        return [piece.strip("{}") for piece in super().collect_usage_pieces(ctx)]

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Complete also the options that the help leaves out, once a letter of them is typed."""
        if len(incomplete) > len("--"):
            for param in self.params:
                if isinstance(param, TyperOption):
                    param.hidden = False
        return super().shell_complete(ctx, incomplete)


def command_line(command: str, spec: Spec, of: type[Spec]) -> str:
    """Return the command line that gives a command the values of `spec`, of the fields that `of` has too.

    `command`: with its arguments. Secrets in the address of a source are left out: a person types them again.
    """
    words = ["cpb", *command.split()]
    for name, field in of.model_fields.items():
        value = getattr(spec, name)
        # What a preset file contains is read again from the file, which `preset` names.
        if value == field.get_default(call_default_factory=True) or name == FILES or _is_implied(name, spec):
            continue
        if name == OVERRIDES:
            for option, chosen in value.items():
                words += ["--set", f"{option}={_setting_text(chosen)}"]
        elif name in BY_SET:
            words += ["--set", f"{name}={_setting_text(value)}"]
        elif isinstance(value, bool):
            words.append(f"--{'' if value else 'no-'}{_dashed(name)}")
        else:
            words += [f"--{_dashed(name)}", public_url(value) if name == "source" else str(value)]
    return shlex.join(words)


def _is_implied(name: str, spec: Spec) -> bool:
    """Whether a field is the market that its source implies."""
    return name == "market" and spec.model_dump()[name] in APART and bool(spec.model_dump()["source"])


def _check_coins(values: dict[str, Any]) -> None:
    """Refuse misspelt coins before the architectures are imported, which takes a second; errors as in `check_coins`."""
    from tasks.market.listing import check_coins

    check_coins(
        ScopeSpec(**{name: value for name, value in values.items() if name in ScopeSpec.model_fields})
    )


def _setting_text(value: Any) -> str:
    """Return a value as `parse_value` reads it."""
    return value if isinstance(value, str) and parse_value(value) == value else json.dumps(value)


def _settings(values: dict[str, Any]) -> dict[str, Any]:
    """Take the settings of a model out of the command line's values; return them by the field, aliases resolved.

    Raises:
        UsageError: a setting is not NAME=VALUE, or is given twice.
    """
    settings: dict[str, Any] = {}
    before: dict[str, str] = {}
    for typed, name, value in _typed(values):
        field = ALIASES.get(name, name)
        if field in settings:
            both = (before[field], typed)
            by_set = all(text.startswith("--set ") for text in both)
            what = (
                f"--set {field} is given twice" if by_set else f"{field} is given twice: {' and '.join(both)}"
            )
            raise UsageError(f"{what}; leave one out", code="overrides", field=OVERRIDES)
        settings[field], before[field] = value, typed
    return settings


def _typed(values: dict[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Take each setting out of the values: as it was typed, its name and its value."""
    for text in values.pop(OVERRIDES, None) or ():
        name, is_setting, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not name or not is_setting:
            raise UsageError(
                f"--set {text!r} is not NAME=VALUE, as in --set epochs=5", code="overrides", field=OVERRIDES
            )
        yield f"--set {text}", name, parse_value(value)
    for name in (*Preset.__dataclass_fields__, *ALIASES, *BY_SET):
        for value in values.pop(_SET + name, None) or ():
            yield f"--{_dashed(name)} {value}", name, parse_value(value)
        for _ in range(values.pop(_UNSET + name, 0)):
            yield f"--no-{_dashed(name)}", name, False


def _parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    names = [f"--{_dashed(name)}", *([ALSO[name]] if name in ALSO else [])]
    kinds = {field.annotation, *get_args(field.annotation)}
    choices = [text for kind in kinds for text in (kind, *get_args(kind)) if isinstance(text, str)]
    option = typer.Option(
        *names,
        help=field.description,
        autocompletion=completing(name, choices),
        metavar="<int>" if int in kinds else None,
        rich_help_panel=_PANEL_OF.get(name),
    )
    if bool in kinds:
        return _keyword(name, Annotated[bool, option], field.default)
    # As text, also of numbers: the specification reads and checks it, with its own sentence.
    default = None if field.default is None else str(field.default)
    return _keyword(name, Annotated[str | None, option], default)


def _argument(name: str) -> inspect.Parameter:
    field, about = _POSITIONAL[name]
    argument = typer.Argument(
        help=about, metavar=name.upper(), show_default=False, autocompletion=completing(field)
    )
    return _keyword(name, Annotated[str | None, argument], None)


def _model_parameters(by_set: Collection[str]) -> list[inspect.Parameter]:
    about = (
        f"a field of the model preset, as in epochs=5, or {', '.join(by_set)}; may be repeated. Each is an option, "
        f"too: {', '.join(COMMONEST)}; `cpb presets NAME` lists all"
    )
    setting = typer.Option("--set", metavar="NAME=VALUE", help=about, rich_help_panel=_PANEL_OF[OVERRIDES])
    parameters = [_keyword(OVERRIDES, Annotated[list[str] | None, setting], None)]
    for name in (*Preset.__dataclass_fields__, *ALIASES, *by_set):
        same = f"the same as --set {ALIASES.get(name, name)}="
        # Hidden: a hundred options would bury those that a command needs.
        option = typer.Option(f"--{_dashed(name)}", help=same, hidden=True)
        parameters.append(_keyword(_SET + name, Annotated[list[str] | None, option], None))
        if name in ON_OFF:
            negation = typer.Option(f"--no-{_dashed(name)}", count=True, help=f"{same}false", hidden=True)
            parameters.append(_keyword(_UNSET + name, Annotated[int, negation], 0))
    return parameters


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
