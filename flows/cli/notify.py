"""`cpb notify`: which services are told, and a test message to each."""

from typing import Annotated

import typer

from flows.cli.options import Json
from flows.console import emit, say


def notify(
    test: Annotated[bool, typer.Option("--test", help="send a test message to every service")] = False,
    json: Json = False,
) -> None:
    """List the services of CPB_NOTIFY that are told of failures; with --test, send each a message.

    Example: cpb notify --test
    """
    from flows.notices import try_services
    from schemas.scope import home
    from tasks.notices.services import services

    if not test:
        names = [one.name for one in services(home())]
        for name in names:
            say(name)
        if json:
            emit({"services": names, "exit": 0})
        elif not names:
            say("nobody is told: set CPB_NOTIFY, as docs/notifications.md says")
        return
    problems = try_services(home())
    for name, problem in problems.items():
        say(f"{name}: {problem or 'accepted'}")
    code = 0 if not all(problems.values()) else 1
    if json:
        found = [
            {"service": name, "accepted": not problem, "problem": problem}
            for name, problem in problems.items()
        ]
        emit({"services": found, "exit": code})
    raise typer.Exit(code)
