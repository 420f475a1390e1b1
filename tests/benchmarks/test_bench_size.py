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
    ("source", "tokens", "comments", "functions"),
    [
        (SOURCE, 2 + 2 + 2 + 9 + 4, 2, (3,)),
        ("", 0, 0, ()),
        ("x = 1; y = 2  # type: ignore[x]\n", 7, 0, ()),
        ('f("""\na\n""")  # fmt: skip\n', 3, 0, ()),
    ],
)
def test_tokens_are_those_of_code_and_comments_those_for_readers(source, tokens, comments, functions):
    counted = size.module("flows/a.py", source)
    assert (counted.tokens, counted.comments, counted.functions) == (tokens, comments, functions)
    assert counted.skipped == ("fmt: skip" in source)


@pytest.mark.parametrize(
    ("source", "late", "renamed"),
    [
        ("A = 1\ndef f(): pass\nB = f\nC = B\n", 0, 0),
        ("def f(): pass\nA = 1\n_B: int = 2\nc = 3\n", 2, 0),
        ("class K: pass\nA = K()\nB = 1\n", 1, 0),
        ("from tasks.a import b as c, d as d, e\nfrom numpy import x as y\nimport tasks.a as z\n", 0, 1),
    ],
)
def test_constants_below_a_function_that_need_it_not_and_names_of_ours_that_are_changed(
    source, late, renamed
):
    counted = size.module("flows/a.py", source)
    assert (counted.late_constants, counted.renamed) == (late, renamed)


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
    assert {name: list(row.values())[:4] for name, row in rows.items()} == {
        "product": [3, 15, 45, "5 / 5 / 7"],
        "benchmarks": [0, 0, 0, "0 / 0 / 0"],
        "tests": [1, 2, 6, "2 / 2 / 2"],
        "flows": [1, 3, 9, "3 / 3 / 3"],
        "tasks/b": [2, 12, 36, "5 / 5 / 7"],
    }


def test_more_tokens_than_allowed_end_with_a_sentence(clone, capsys):
    size.main(["--root", str(clone), "--at-most", "45"])
    assert capsys.readouterr().out == ""
    with pytest.raises(SystemExit) as end:
        size.main(["--root", str(clone), "--at-most", "44"])
    assert "45 tokens, 1 more" in end.value.code
