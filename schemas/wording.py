"""Phrases shared by many messages."""


def count(number: int, noun: str) -> str:
    """Return the number with its noun: `1 member`, `2 members`, `1,200 windows`, `3 series`."""
    plural = noun if noun.endswith("series") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def age(seconds: float) -> str:
    """Return a duration in its largest whole unit: `25 min`, `3 h`, `537 days`."""
    for unit_s, name in ((86400, "day"), (3600, "h"), (60, "min")):
        if (number := round(seconds / unit_s)) and seconds >= unit_s:
            return count(number, name) if name == "day" else f"{number} {name}"
    return f"{seconds:.0f} s"


def install_extra(extra: str) -> str:
    """Return the command that installs an extra, from the clone because the project is on no package index."""
    return f"`pip install -e '.[{extra}]'` in the project's folder"


def p_value(p: float | None) -> str:
    """Return a p-value as `.553` or `<.001`, never as zero."""
    if p is None or p != p:
        return "-"
    return "<.001" if p < 0.001 else f"{p:.3f}".removeprefix("0")
