"""What cpb deletes of its own accord is what docs/operations.md says."""

import re
from pathlib import Path

from flows.cli.data import prune
from schemas.retention import NIGHTS, RULES

ROOT = Path(__file__).parents[2]


def test_the_table_of_what_is_deleted_has_every_rule_and_no_other():
    text = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    table = text.partition("| what | what is kept | why |\n|---|---|---|\n")[2].partition("\n\n")[0]
    assert [tuple(row.strip("| ").split(" | ")) for row in table.splitlines()] == list(map(tuple, RULES))


def test_the_nights_that_are_named_are_those_that_stay():
    named = [(ROOT / "docs/operations.md").read_text(encoding="utf-8"), str(prune.__doc__)]
    for text in named:
        assert set(re.findall(r"the last (\d+)\s+nights", text)) == {str(NIGHTS)}
