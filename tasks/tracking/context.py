"""MLflow's standard tags of a run: who made it, with which command and which code; its pages show them as columns."""

import json
import subprocess
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

SOURCE = "mlflow.source.name"
"""The command, as in `cpb train-all`; never a path or an argument, which may hold a secret."""
_UNKNOWN = "unknown"


def context_tags(source: str) -> dict[str, str]:
    """Return the standard tags of a new run; `source`: its `SOURCE`.

    The user is the name with which MLflow's server is asked, else that of the operating system, as MLflow's own client
    records it. Of git the commit alone: MLflow's own context adds the address of the remote, which may hold a password.
    """
    commit = git_commit().removesuffix("-dirty")
    code = {} if commit == _UNKNOWN else {"mlflow.source.git.commit": commit}
    return {"mlflow.user": _user(), SOURCE: source, "mlflow.source.type": "LOCAL", **code}


def _user() -> str:
    from mlflow.tracking.context.default_context import DefaultRunContext

    with suppress(KeyError, OSError):  # a container's user may have no name
        return str(DefaultRunContext().tags()["mlflow.user"])  # type: ignore[no-untyped-call]
    return _UNKNOWN


@cache
def git_commit() -> str:
    """Return the commit of the code in use, `-dirty` if changed, `unknown` where neither git nor pip knows it."""
    # What pip notes of a package installed from a repository (PEP 610) comes first: around an installed package, git
    # would answer for the repository in which the environment happens to lie.
    with suppress(PackageNotFoundError, ValueError, KeyError):
        noted = distribution("cpb-forecast").read_text("direct_url.json")
        return str(json.loads(noted or "{}")["vcs_info"]["commit_id"])
    # No tag matches the excluded pattern, so that the whole commit is its name.
    command = ["git", "--no-optional-locks", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.check_output(
            command, cwd=Path(__file__).parent, stderr=subprocess.DEVNULL, text=True, timeout=10
        ).strip()
    except (OSError, subprocess.SubprocessError):  # no git, or no checkout: an installed package
        return _UNKNOWN
