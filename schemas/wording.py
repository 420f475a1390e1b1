"""Phrases that many messages share."""


def count(number: int, noun: str) -> str:
    """Return the number with its noun: `1 member`, `2 members`, `1,200 windows`, `3 series`."""
    plural = noun if noun.endswith("series") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def install_extra(extra: str) -> str:
    """Return how the packages of an extra are installed: from the clone, since no package index has this project."""
    return f"`pip install -e '.[{extra}]'` in the project's folder"
