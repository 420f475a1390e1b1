"""The counter on small made-up sources."""

import json

import pytest

from benchmarks import size

SOURCE = '''"""A module.

Of three lines."""

import os  # which has code

NAME = """a text
of two lines
"""
"""What NAME is."""

# a reason


@property
def double(a, *b):
    """Say what."""
    return 2 * a  # noqa: X
'''


@pytest.mark.parametrize(
    ("source", "lines", "tokens"),
    [
        (SOURCE, 1 + 3 + 3, 2 + 2 + 2 + 9 + 4),
        ("", 0, 0),
        ("x = 1; y = 2\n", 1, 7),
        ('f("""\na\n""")\n', 3, 3),
    ],
)
def test_lines_and_tokens_are_those_of_code(source, lines, tokens):
    counted = size.module("flows/a.py", source)
    assert (counted.lines, counted.tokens) == (lines, tokens)


@pytest.fixture
def clone(tmp_path):
    for path, lines in {
        "flows/a.py": 3,
        "flows/__init__.py": 0,
        "tasks/b/c.py": 5,
        "tasks/b/d/e.py": 7,
        "tests/test_a.py": 2,
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("x = 1\n" * lines)
    return tmp_path


def test_a_row_for_product_benchmarks_tests_and_each_folder(clone, capsys):
    size.main(["--root", str(clone), "--json"])
    rows = json.loads(capsys.readouterr().out)
    assert {name: list(row.values()) for name, row in rows.items()} == {
        "product": [3, 15, 45, 7],
        "benchmarks": [0, 0, 0, 0],
        "tests": [1, 2, 6, 2],
        "flows": [1, 3, 9, 3],
        "tasks/b": [2, 12, 36, 7],
    }
