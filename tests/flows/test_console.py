"""What people and programs read."""

import json

import pytest

from flows.console import emit
from schemas.wording import count


@pytest.mark.parametrize(
    ("number", "noun", "said"),
    [(0, "member", "0 members"), (1, "member", "1 member"), (2, "member", "2 members"), (1, "series", "1 series"),
     (3, "series", "3 series"), (1200, "forecast row", "1,200 forecast rows")],
)  # fmt: skip
def test_numbers_come_with_their_noun(number, noun, said):
    assert count(number, noun) == said


def test_json_has_no_nan(capsys):
    emit({"a": float("nan"), "b": [float("inf"), 1.5]})
    assert json.loads(capsys.readouterr().out) == {"a": None, "b": [None, 1.5]}
