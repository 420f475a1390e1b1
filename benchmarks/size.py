"""How large the code is, and whether it stays within its limits: `python -m benchmarks.size [--check] [--json]`.

Counted are lines that hold code: no blank lines, no comments, no docstrings (strings that stand by themselves, under a
name as well). A file without code, such as an empty `__init__.py`, is not counted. A function's length is its lines of
code, those of its inner functions included. Comments are those for readers, not for tools (`fmt: skip`, `noqa`).
A function only forwards where its body is one call for which nothing is computed; `--forwards` lists them. `--check`
compares with `size_limits.toml`.
"""

import argparse
import ast
import io
import json
import re
import statistics
import tokenize
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks._paired import table

ROOT = Path(__file__).parents[1]
LIMITS = Path(__file__).with_name("size_limits.toml")
PRODUCT = ("flows", "tasks", "cpbmodels", "schemas", "webapp")
PACKAGES = (*PRODUCT, "benchmarks")
_NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
}  # fmt: skip
_FOR_TOOLS = re.compile(r"#\s*(fmt|noqa|type|pragma)\b")
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """What one file holds: numbers of lines of code and of comments, functions' lengths, and those that only forward.

    `path` is relative to the root; `forwards` holds `name:line`.
    """

    path: str
    lines: int
    comments: int
    functions: tuple[int, ...]
    forwards: tuple[str, ...]


def module(path: str, source: str) -> Module:
    """Count the lines of one file's source."""
    code: set[int] = set()
    comments = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        comments += token.type == tokenize.COMMENT and not _FOR_TOOLS.match(token.string)
        if token.type not in _NO_CODE:
            code.update(range(token.start[0], token.end[0] + 1))
    nodes = list(ast.walk(ast.parse(source)))
    for node in nodes:
        if _is_docstring(node):
            code.difference_update(_span(node))
    functions = [node for node in nodes if isinstance(node, _Function)]
    return Module(
        path,
        len(code),
        comments,
        tuple(len(code.intersection(_span(one))) for one in functions),
        tuple(f"{one.name}:{one.lineno}" for one in functions if _only_forwards(one)),
    )


def _span(node: Any) -> range:
    return range(node.lineno, node.end_lineno + 1)


def _is_docstring(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _only_forwards(function: _Function) -> bool:
    """Whether the body is one call for which nothing is computed: it gets names, their fields and constants."""
    body = [line for line in function.body if not _is_docstring(line)]
    if len(body) != 1 or not isinstance(body[0], ast.Return | ast.Expr):
        return False
    call = body[0].value.value if isinstance(body[0].value, ast.Await) else body[0].value
    if not isinstance(call, ast.Call):
        return False
    return all(_is_plain(one) for one in (*call.args, *(word.value for word in call.keywords)))


def _is_plain(given: ast.expr) -> bool:
    while isinstance(given, ast.Starred | ast.Attribute):
        given = given.value
    return isinstance(given, ast.Name | ast.Constant)


def modules(root: Path, package: str) -> list[Module]:
    """Count a package's files that hold code, by path."""
    found = [
        module(path.relative_to(root).as_posix(), path.read_text())
        for path in sorted((root / package).rglob("*.py"))
    ]
    return [one for one in found if one.lines]


def figures(counted: Iterable[Module]) -> dict[str, Any]:
    """Return a table's row for some files."""
    files = list(counted)
    lines = sum(one.lines for one in files)
    return {
        "files": len(files),
        "lines": lines,
        "file median / p90 / max": _spread([one.lines for one in files]),
        "function median / p90 / max": _spread([length for one in files for length in one.functions]),
        "comments per 100": round(100 * sum(one.comments for one in files) / max(lines, 1), 1),
        "only forward": sum(len(one.forwards) for one in files),
    }


def _spread(lengths: list[int]) -> str:
    if not lengths:
        return "–"
    ordered = sorted(lengths)
    return f"{statistics.median(ordered):.0f} / {ordered[round(0.9 * (len(ordered) - 1))]} / {ordered[-1]}"


def report(packages: Mapping[str, list[Module]]) -> dict[str, dict[str, Any]]:
    """Return a row for each package and each of its folders, then one for the product without benchmarks."""
    rows: dict[str, dict[str, Any]] = {}
    for name, counted in packages.items():
        rows[name] = figures(counted)
        folders = sorted({"/".join(one.path.split("/")[:2]) for one in counted if one.path.count("/") > 1})
        rows |= {
            place: figures(one for one in counted if one.path.startswith(f"{place}/")) for place in folders
        }
    return rows | {"product": figures(one for name in PRODUCT for one in packages.get(name, []))}


def over_limits(packages: Mapping[str, list[Module]], limits: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Return a sentence for each package that has more lines or files than its limit, or that has none."""
    found = []
    for name, counted in packages.items():
        have = {"lines": sum(one.lines for one in counted), "files": len(counted)}
        for what, number in have.items():
            limit = limits.get(name, {}).get(what, 0)
            if number > limit:
                found.append(
                    f"{name} has {number:,} {what} of code, over its limit of {limit:,}: make it smaller, or move the "
                    f"limit in benchmarks/{LIMITS.name} in the same commit, with the reason"
                )
    return found


def main(argv: list[str] | None = None) -> None:
    """Print the table or JSON; with `--check` one sentence for each package over its limit, and exit code 1."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--root", type=Path, default=ROOT, help="the clone that is counted; default: this one"
    )
    parser.add_argument("--limits", type=Path, default=LIMITS, help=argparse.SUPPRESS)
    parser.add_argument("--check", action="store_true", help="compare with the limits and print nothing else")
    parser.add_argument("--forwards", action="store_true", help="list the functions that only forward")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(argv)
    packages = {name: modules(asked.root, name) for name in PACKAGES}
    if asked.check:
        if wrong := over_limits(packages, tomllib.loads(asked.limits.read_text())):
            raise SystemExit("\n".join(wrong))
        return
    if asked.forwards:
        print(
            "\n".join(
                f"{one.path} {name}"
                for counted in packages.values()
                for one in counted
                for name in one.forwards
            )
        )
        return
    rows = report(packages)
    print(json.dumps(rows) if asked.json else table(rows))


if __name__ == "__main__":
    main()
