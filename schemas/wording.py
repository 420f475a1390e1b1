"""Numbers with their nouns, one way everywhere."""


def count(number: int, noun: str) -> str:
    """Return the number with its noun: `1 member`, `2 members`, `1,200 windows`, `3 series`."""
    plural = noun if noun.endswith("series") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"
