"""Which version of the code made a run."""

import subprocess
from functools import cache
from pathlib import Path


@cache
def git_commit() -> str:
    """Return the commit of the code in use, `-dirty` where changed, `unknown` outside a git checkout."""
    root = Path(__file__).parent
    try:
        commit = _git(root, "rev-parse", "HEAD")
        return f"{commit}-dirty" if _git(root, "status", "--porcelain", "--untracked-files=no") else commit
    except (OSError, subprocess.SubprocessError):  # no git, or no checkout: an installed package
        return "unknown"


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "--no-optional-locks", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
        timeout=10,
    )
    return done.stdout.strip()
