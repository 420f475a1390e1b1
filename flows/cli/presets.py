"""`cpb presets`: list the presets with their purpose, or show every option that a preset resolves to."""

from typing import Annotated, Any

import typer

from flows.cli.options import Json
from flows.console import emit, say
from flows.tables import Column, print_table
from schemas.errors import EXIT_COMPLETE, EXIT_PARTIAL, UsageError
from schemas.presets import (
    PRESET_ABOUT,
    PRESET_ARCHITECTURES,
    PRESET_COPIES,
    SUFFIX,
    own_presets_folder,
    read_preset,
)
from schemas.run import RunSpec, base_of

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
