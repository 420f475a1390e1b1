"""`cpb doctor`: is this machine ready to train, and what can it give?"""

from typing import Annotated

import typer

from flows.cli.options import Json
from flows.console import emit


def doctor(
    quick: Annotated[
        bool, typer.Option("--quick", help="skip the training step of each architecture")
    ] = False,
    json: Json = False,
) -> None:
    """Look at GPU, driver, torch build and memory; measure them; say what is wrong and what to do.

    Exit code 1 where something is wrong, such as a CPU-only torch on a machine with a GPU.

    Example: cpb doctor --json
    """
    from cpbmodels.device.doctor import examine

    diagnosis = examine(steps=not quick)
    if json:
        emit(diagnosis.as_dict() | {"exit": diagnosis.exit_code})
    else:
        from cpbmodels.device.report import lines

        for line in lines(diagnosis):
            print(line)
    raise typer.Exit(diagnosis.exit_code)
