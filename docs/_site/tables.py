"""Tables of `docs/reference.md` that are made from the code: presets, options, commands, errors, HTTP API.

`python docs/_site/tables.py` writes them between their markers, `<!-- generated: NAME -->` and `<!-- end: NAME -->`.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import typer
from error_codes import HOLE, error_codes

import cpbmodels
from cpbmodels.arch import find
from cpbmodels.arch.options import ALIASES, CHOICES, RANGES
from cpbmodels.arch.presets import all_presets, by_timeframe
from schemas.presets import PRESET_ABOUT, PRESET_ARCHITECTURES, PRESET_COPIES

OPTIONS_FILE = Path(cpbmodels.__file__).parent / "arch" / "options.py"
REFERENCE = Path(__file__).parents[1] / "reference.md"
_GENERATED = re.compile(r"(?<=<!-- generated: )([\w-]+) -->.*?(?=<!-- end: \1 -->)", re.DOTALL)


def with_tables(text: str) -> str:
    """Return a page's text with what its markers name between them."""
    return _GENERATED.sub(lambda found: f"{found[1]} -->\n\n{TABLES[found[1]]()}\n\n", text)


def table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a Markdown table; a bar within a cell is escaped."""
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return "\n".join(lines + ["| " + " | ".join(_cell(cell) for cell in row) + " |" for row in rows])


def presets() -> str:
    """Every preset: what it is for, what it trains, what it sets."""
    return table(
        ("preset", "what for", "trains", "copies averaged", "sets"),
        (
            (f"`{name}`", PRESET_ABOUT[name], ", ".join(trained), PRESET_COPIES.get(name, 1), _set_by(name))
            for name, trained in PRESET_ARCHITECTURES.items()
        ),
    )


def options() -> str:
    """Every option of a model and its training: default, range, meaning, and what `default` makes of it."""
    about = option_meanings()
    return table(
        ("option", "built-in value", "allowed", "meaning"),
        (
            (_names(one.name), _value(one.default), _allowed(one.name), about[one.name])
            for one in fields(cpbmodels.Preset)
        ),
    )


def architectures() -> str:
    """What each architecture reads of the sizes, and its own values under the preset `default`."""
    rows = []
    for name in cpbmodels.architectures():
        spec = find(name).spec
        resolved = cpbmodels.preset(spec.default_preset, name)
        sizes = ", ".join(f"{size} {_value(getattr(resolved, size))}" for size in spec.sizes)
        rows.append(
            (f"`{name}`", f"`{spec.default_preset}`", sizes or "none", resolved.context, resolved.head)
        )
    return table(("architecture", "preset of `cpb train`", "sizes", "candles it reads", "head"), rows)


def profiles() -> str:
    """Hardware profiles."""
    return table(
        ("profile", "sets"),
        ((f"`{name}`", _changes(values)) for name, values in cpbmodels.PROFILES.items()),
    )


def commands() -> str:
    """Every command with its options."""
    from flows.cli.app import _app

    group = typer.main.get_command(_app())
    return "\n\n".join(_command(["cpb", *path], command) for path, command in _walk(group))


def errors() -> str:
    """Every code of an error, with the exit codes that it comes with and the fullest of its sentences."""
    rows = []
    for code, (exits, sentences) in error_codes().items():
        fullest = re.sub(f"{HOLE}+", HOLE, max(sentences, key=len))
        rows.append(
            (f"`{code}`", ", ".join(map(str, exits)), fullest if fullest.strip(f"{HOLE} ,:;or") else HOLE)
        )
    return table(("code", "exit code", "what it says, for example"), rows)


def http() -> str:
    """Every path of `cpb serve`, from its own description."""
    from webapp.app import create_app

    with TemporaryDirectory() as folder:
        described = create_app(Path(folder)).openapi()
    return "\n\n".join(
        _path(path, verbs["get"]) for path, verbs in described["paths"].items() if "get" in verbs
    )


def option_meanings() -> dict[str, str]:
    """Return the comment behind each field of `Preset`: the one place where an option's meaning is written."""
    found = {}
    text = OPTIONS_FILE.read_text().partition("class Preset:")[2].partition("def as_dict")[0]
    for line in text.splitlines():
        name, colon, rest = line.strip().partition(": ")
        if colon and name.isidentifier():
            found[name] = rest.partition("  # ")[2] or PLAIN.get(name, "")
    return found


PLAIN = {
    "context": "candles that the model reads",
    "horizon": "candles that it forecasts",
    "features": "columns that it reads, see [your own columns](extending.md#your-own-columns)",
    "hidden_dim": "width of the hidden layers",
    "n_layers": "number of layers",
    "n_heads": "number of attention heads",
    "ff_dim": "width of the transformer's feed-forward layers",
    "dropout": "share of units that are dropped in training",
    "head": "what the outputs mean: Student-t or quantiles of each close, or a point with residual quantiles",
    "optimizer": "torch's Adam or AdamW, for all members at once",
    "lr": "learning rate",
    "weight_decay": "decoupled for AdamW, added to the gradient for Adam",
    "schedule": "how the rate falls over the epochs",
}
"""Options whose name is their meaning, in whose line the code has no comment."""


def _command(path: list[str], command: Any) -> str:
    text = (command.help or "").split("\n\n")
    about, rest = text[0].replace("\n", " "), [line.strip() for line in text[1:]]
    example = next((line.removeprefix("Example: ") for line in rest if line.startswith("Example: ")), "")
    notes = [line for line in rest if not line.startswith("Example: ")]
    parts = [f"### {' '.join(path)}", about, *notes]
    if example:
        parts.append(f"Example: `{example}`")
    shown = [
        one
        for one in command.params
        if one.name not in ("help", "json") and not getattr(one, "hidden", False)
    ]
    if shown:
        parts.append(table(("option", "default", "meaning"), (_parameter(one) for one in shown)))
    return "\n\n".join(parts)


def _parameter(one: Any) -> tuple[str, str, str]:
    given = type(one).__name__.endswith("Argument")
    names = (one.metavar or one.name.upper()) if given else ", ".join([*one.opts, *one.secondary_opts])
    default = "required" if one.required else "" if one.default in (None, False) else str(one.default)
    return f"`{names}`", default, getattr(one, "help", None) or ""


def _walk(group: Any, path: tuple[str, ...] = ()) -> Iterable[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _walk(command, (*path, name))
        else:
            yield (*path, name), command


def _path(path: str, verb: dict[str, Any]) -> str:
    about = (verb.get("description") or verb.get("summary") or "").strip()
    parts = [f"### `{path}`", about.replace("\n", " ")]
    if asked := verb.get("parameters"):
        rows = (
            (f"`{one['name']}`", one["in"], _schema(one["schema"]), one.get("description", ""))
            for one in asked
        )
        parts.append(table(("parameter", "in", "values", "meaning"), rows))
    return "\n\n".join(parts)


def _schema(schema: dict[str, Any]) -> str:
    choices = schema.get("anyOf", [schema])
    kinds = [", ".join(one["enum"]) if "enum" in one else one.get("type", "") for one in choices]
    limits = [
        f"{word} {schema[key]:g}" for key, word in (("minimum", "from"), ("maximum", "to")) if key in schema
    ]
    default = [f"default {schema['default']}"] if schema.get("default") is not None else []
    return ", ".join([*(kind for kind in kinds if kind != "null"), *limits, *default])


@cache
def _all() -> dict[str, dict[str, Any]]:
    return {name: dict(values) for name, values in all_presets().items()}


def _set_by(name: str) -> str:
    named = [
        f"`{architecture}` at {timeframe}: {_changes(values)}"
        for architecture in cpbmodels.architectures()
        for timeframe, values in by_timeframe(name, architecture).items()
    ]
    return "; ".join([_changes(_all().get(name, {})), *named])


def _changes(values: Any) -> str:
    return ", ".join(f"{name} {_value(value)}" for name, value in values.items())


def _names(name: str) -> str:
    return ", ".join(
        f"`{one}`" for one in (name, *(alias for alias, real in ALIASES.items() if real == name))
    )


def _allowed(name: str) -> str:
    if name in CHOICES:
        return ", ".join(CHOICES[name])
    return "{:,g} to {:,g}".format(*RANGES[name]) if name in RANGES else ""


def _value(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _cell(value: Any) -> str:
    return str(value).replace("\n", " ").replace("|", "\\|")


TABLES: dict[str, Callable[[], str]] = {
    "presets": presets,
    "options": options,
    "architectures": architectures,
    "profiles": profiles,
    "commands": commands,
    "errors": errors,
    "http": http,
}
"""Marker -> what stands in its place."""


if __name__ == "__main__":
    REFERENCE.write_text(with_tables(REFERENCE.read_text()))
