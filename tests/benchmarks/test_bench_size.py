"""The counter on small made-up sources, and its limits."""

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
#   and more of it


@property
@staticmethod
def one(a, *b, c=1, **d):
    """Say what."""
    return two(a, *b, c=c, **d)  # fmt: skip


class Two:
    """A class."""

    x: int = 1  # noqa: X
    """µs"""

    async def three(self, a):
        def inner():
            return 1

        # not in vain
        return await two(self.x, a, b"c", "d")

    def four(self, a):
        return two(a + 1)

    def five(self):
        pass
'''


def counted(source, path="flows/a.py"):
    return size.module(path, source)


def test_lines_of_code_are_those_without_blanks_comments_and_docstrings():
    found = counted(SOURCE)
    assert found.lines == 1 + 3 + 4 + 2 + 4 + 2 + 2
    assert found.comments == 4
    assert sorted(found.functions) == [2, 2, 2, 2, 4]
    assert found.forwards == ("one:18",)


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("", 0),
        ('"""Doc."""\n', 0),
        ("x = 1; y = 2\n", 1),
        ("f(\n    1,\n\n    2,\n)\n", 4),
        ('f"""\na\n"""\n', 3),
    ],
)
def test_small_sources(source, lines):
    assert counted(source).lines == lines


@pytest.mark.parametrize(
    ("body", "forwards"),
    [
        ("return g(a)", True),
        ("g(a)", True),
        ("'''Doc.'''\n    return g(a=a)", True),
        ("return a.b.c()", True),
        ("return g(a, 1, D.e)", True),
        ("return g(-a)", False),
        ("return g(h(a))", False),
        ("return g(x for x in a)", False),
        ("x = g(a)\n    return x", False),
        ("return a", False),
        ("return", False),
        ("pass", False),
    ],
)
def test_a_function_that_only_forwards_computes_nothing(body, forwards):
    assert bool(counted(f"def f(a):\n    {body}\n").forwards) == forwards


@pytest.fixture
def clone(tmp_path):
    for path, lines in {
        "flows/a.py": 3,
        "flows/__init__.py": 0,
        "tasks/b/c.py": 5,
        "tasks/b/d.py": 7,
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("x = 1\n" * lines)
    return tmp_path


def limits(clone, **numbers):
    path = clone / "limits.toml"
    path.write_text("".join(f"{k} = {{lines = {v[0]}, files = {v[1]}}}\n" for k, v in numbers.items()))
    return ["--root", str(clone), "--limits", str(path), "--check"]


def test_a_row_for_each_package_each_folder_and_the_product(clone, capsys):
    size.main(["--root", str(clone), "--json"])
    rows = json.loads(capsys.readouterr().out)
    assert {name: (row["files"], row["lines"]) for name, row in rows.items() if row["files"]} == {
        "flows": (1, 3), "tasks": (2, 12), "tasks/b": (2, 12), "product": (3, 15)
    }  # fmt: skip
    assert rows["tasks"]["file median / p90 / max"] == "6 / 7 / 7"
    size.main(["--root", str(clone)])
    assert "| tasks/b | 2 | 12 |" in capsys.readouterr().out


def test_a_package_within_its_limits_passes_in_silence(clone, capsys):
    size.main(limits(clone, flows=(3, 1), tasks=(12, 2)))
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("tasks", "sentence"),
    [
        ((11, 2), "tasks has 12 lines of code, over its limit of 11: "),
        ((12, 1), "tasks has 2 files of code, over"),
    ],
)
def test_a_package_over_a_limit_fails_with_one_sentence(clone, tasks, sentence):
    with pytest.raises(SystemExit) as ended:
        size.main(limits(clone, flows=(3, 1), tasks=tasks))
    assert str(ended.value).startswith(sentence)
    assert str(ended.value).endswith(
        "move the limit in benchmarks/size_limits.toml in the same commit, with the reason"
    )
    assert len(str(ended.value).splitlines()) == 1


def test_a_package_without_a_limit_fails(clone):
    with pytest.raises(SystemExit, match="flows has 3 lines of code, over its limit of 0"):
        size.main(limits(clone, tasks=(12, 2)))


def test_this_clone_is_within_its_limits():
    size.main(["--check"])
