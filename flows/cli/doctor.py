"""`cpb doctor`: is this machine ready to train, and what can it give?"""

import os
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli.options import Json
from flows.console import emit
from schemas.errors import CpbError
from schemas.scope import home
from tasks.storage.store_url import STORE
from tasks.storage.urls import public_url

if TYPE_CHECKING:
    from cpbmodels.device.doctor import Diagnosis


def doctor(
    quick: Annotated[
        bool, typer.Option("--quick", help="skip the training step of each architecture")
    ] = False,
    json: Json = False,
) -> None:
    """Look at GPU, driver, torch build and memory; measure them; say what is wrong and what to do.

    Where CPB_STORE is set, also at the store that machines share: whether it can be written.

    Exit code 1 where something is wrong, such as a CPU-only torch on a machine with a GPU.

    Example: cpb doctor --json
    """
    from cpbmodels.device.doctor import examine

    diagnosis = examine(steps=not quick)
    _look_at_store(diagnosis)
    if json:
        emit(diagnosis.as_dict() | {"exit": diagnosis.exit_code})
    else:
        from cpbmodels.device.report import lines

        if store := diagnosis.facts["store"]:
            print(f"store: {store['url']} ({'can be written' if store['writable'] else 'cannot be used'})")
        for line in lines(diagnosis):
            print(line)
    raise typer.Exit(diagnosis.exit_code)


def _look_at_store(diagnosis: "Diagnosis") -> None:
    """Add the shared store to the facts, None where there is none, and its problem."""
    from cpbmodels.device.findings import Problem
    from tasks.training.shared_shards import check_shared_store

    url = os.environ.get(STORE)
    diagnosis.facts["store"] = {"url": public_url(url), "writable": True} if url else None
    try:
        check_shared_store(home())
    except CpbError as error:
        diagnosis.facts["store"]["writable"] = False
        diagnosis.problems.append(
            Problem(str(error), f"correct {STORE}, or unset it to work in the home alone")
        )
