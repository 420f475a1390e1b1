"""`cpb presets`: list the presets with their purpose, and explain a preset."""

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from flows.cli.options import Json
from flows.console import emit, show
from schemas.errors import EXIT_COMPLETE, EXIT_PARTIAL, UsageError
from schemas.presets import (
    PRESET_ABOUT,
    PRESET_ARCHITECTURES,
    PRESET_COPIES,
    SUFFIX,
    is_file,
    own_presets_folder,
    read_preset,
)
from schemas.run import RunSpec, base_of


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
        explained = explain(name)
        if json:
            emit(explained | {"exit": EXIT_COMPLETE})
        else:
            _print_explained(explained)
        return
    found = [_built_in(architecture) for architecture in PRESET_ARCHITECTURES] + [
        _own(path) for path in sorted(own_presets_folder().glob(f"*{SUFFIX}"))
    ]
    code = EXIT_PARTIAL if any(preset["problem"] for preset in found) else EXIT_COMPLETE
    if json:
        emit({"presets": found, "folder": str(own_presets_folder()), "exit": code})
    else:
        _print_list(found)
    raise typer.Exit(code)


def explain(name: str) -> dict[str, Any]:
    """Return the resolved preset: per architecture every option, its value and its allowed values.

    Raises:
        UsageError: the preset does not exist or is invalid; the message is the same as in a run.
    """
    import cpbmodels
    from cpbmodels.arch.options import CHOICES, RANGES

    spec = RunSpec(preset=name)
    allowed = {
        option.name: list(CHOICES[option.name]) if option.name in CHOICES else RANGES.get(option.name)
        for option in fields(cpbmodels.Preset)
    }
    resolved = {
        architecture: cpbmodels.preset(spec.preset, base_of(architecture), **spec.overrides).as_dict()
        for architecture in spec.names
    }
    return {
        **(_own(Path(name)) if is_file(name) else _built_in(name)),
        "architectures": list(spec.names),
        "resolved": resolved,
        "allowed": allowed,
    }


def _built_in(name: str) -> dict[str, Any]:
    from cpbmodels.arch.presets import all_presets

    return {
        "name": name,
        "about": PRESET_ABOUT[name],
        "base": None,
        "architectures": list(PRESET_ARCHITECTURES[name]),
        "seeds": PRESET_COPIES.get(name, 1),
        "options": dict(all_presets()[name]),
        "problem": None,
    }


def _own(path: Path) -> dict[str, Any]:
    """Return the content of a preset file; `problem` is the message with which a run rejects it."""
    given: dict[str, Any] = {"name": str(path), "about": "", "base": None, "architectures": [], "seeds": None}
    given |= {"options": {}, "problem": None}
    try:
        own = read_preset(str(path))
        spec = RunSpec(preset=str(path))
    except UsageError as error:
        return given | {"problem": str(error)}
    seeds = own.seeds or PRESET_COPIES.get(own.base, 1)
    return given | own.model_dump() | {"architectures": list(spec.names), "seeds": seeds}


def _print_list(found: list[dict[str, Any]]) -> None:
    for preset in found:
        show(f"{preset['name']}: {preset['problem'] or preset['about'] or 'no description'}")
        if preset["problem"]:
            continue
        base = f"changes {preset['base']}; " if preset["base"] else ""
        seeds = f"{preset['seeds']} seeds averaged" if preset["seeds"] > 1 else "1 seed"
        show(f"    {base}trains {', '.join(preset['architectures'])}; {seeds}")
        show(f"    {', '.join(f'{name}={value}' for name, value in preset['options'].items())}")
    show(
        f"\nYour own presets: NAME{SUFFIX} in {own_presets_folder()}, or any path; docs/tuning.md describes the format."
    )


def _print_explained(preset: dict[str, Any]) -> None:
    show(f"{preset['name']}: {preset['about']}")
    columns = list(preset["resolved"])
    values = {
        option: [_short(preset["resolved"][c][option]) for c in columns] for option in preset["allowed"]
    }
    widths = [max(len(c), *(len(v[i]) for v in values.values())) for i, c in enumerate(columns)]
    heads = "  ".join(c.rjust(w) for c, w in zip(columns, widths, strict=True))
    show(f"{'':>24}  {heads}  allowed")
    for option, shown in values.items():
        cells = "  ".join(v.rjust(w) for v, w in zip(shown, widths, strict=True))
        show(f"{option:>24}  {cells}  {_allowed(preset['allowed'][option])}")


def _short(value: Any) -> str:
    return (
        (", ".join(value) if len(value) <= 3 else f"{len(value)} columns")
        if isinstance(value, (list, tuple))
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )


def _allowed(limits: Any) -> str:
    if isinstance(limits, tuple):
        return f"{limits[0]:g} to {limits[1]:g}"
    return ", ".join(limits) if limits else ""
