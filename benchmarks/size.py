"""How large and how readable the code is: `python -m benchmarks.size [--json] [--at-most TOKENS]`.

Its size is the number of tokens: names, keywords, operators and numbers, which a longer name, a comment, a docstring
or another layout does not change. Lines and the lengths of files and functions are shown, and limited nowhere. A file
without code, such as an empty `__init__.py`, is not counted.
"""

import argparse
import ast
import io
import json
import re
import sys
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks._paired import table

ROOT = Path(__file__).parents[1]
PRODUCT = ("flows", "tasks", "cpbmodels", "schemas", "webapp")
_WORDS = {tokenize.NAME, tokenize.OP, tokenize.NUMBER}
_FOR_TOOLS = re.compile(r"#\s*(fmt|noqa|type|pragma|ruff|isort)\b")
"""Comments that say nothing to a reader."""
_CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]*")
_DEFINITION = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Module:
    """What is counted of one file; `path` is below the root, `functions` their lengths in lines."""

    path: str
    lines: int
    tokens: int
    comments: int
    functions: tuple[int, ...]
    late_constants: int
    renamed: int
    skipped: int


def module(path: str, source: str) -> Module:
    """Count one file's source."""
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
    tree = ast.parse(source)
    return Module(
        path=path,
        lines=len(source.splitlines()),
        tokens=sum(token.type in _WORDS for token in tokens),
        comments=sum(not _FOR_TOOLS.match(comment) for comment in comments),
        functions=tuple(
            (node.end_lineno or node.lineno) - node.lineno + 1
            for node in ast.walk(tree)
            if isinstance(node, _DEFINITION)
        ),
        late_constants=sum(_constants_after_a_function(tree)),
        renamed=sum(_renames_of_ours(tree)),
        skipped=sum("fmt: skip" in comment for comment in comments),
    )


def _constants_after_a_function(tree: ast.Module) -> Iterator[bool]:
    """Of each constant below the module's first function: true, unless it is built from what is defined there."""
    defined: set[str] = set()
    for node in tree.body:
        if isinstance(node, (*_DEFINITION, ast.ClassDef)):
            defined.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and defined:
            names = [part for part in ast.walk(node) if isinstance(part, ast.Name)]
            made = {part.id for part in names if isinstance(part.ctx, ast.Store)}
            if made and all(map(_CONSTANT.fullmatch, made)):
                yield defined.isdisjoint(part.id for part in names)
                defined |= made


def _renames_of_ours(tree: ast.Module) -> Iterator[bool]:
    """Of each name that is imported from the product: whether it gets another one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in PRODUCT:
            yield from (alias.asname not in (None, alias.name) for alias in node.names)


def modules(root: Path, package: str) -> list[Module]:
    """Count a package's files that hold code, by path."""
    counted = [
        module(path.relative_to(root).as_posix(), path.read_text())
        for path in sorted((root / package).rglob("*.py"))
    ]
    return [file for file in counted if file.tokens]


def report(root: Path) -> dict[str, dict[str, Any]]:
    """Return a row for the product, the benchmarks and the tests, then for each folder of the product."""
    product = [file for package in PRODUCT for file in modules(root, package)]
    rows = {"product": product} | {name: modules(root, name) for name in ("benchmarks", "tests")}
    for file in product:
        rows.setdefault("/".join(file.path.split("/")[:-1][:2]), []).append(file)
    return {name: _row(files) for name, files in rows.items()}


def _row(files: list[Module]) -> dict[str, Any]:
    lines = sum(file.lines for file in files)
    return {
        "files": len(files),
        "lines": lines,
        "tokens": sum(file.tokens for file in files),
        "file 50 / 90 / 100 %": _spread(file.lines for file in files),
        "function 50 / 90 / 100 %": _spread(length for file in files for length in file.functions),
        "comments a 100 lines": round(100 * sum(file.comments for file in files) / max(lines, 1), 1),
        "late constants": _files_with(files, lambda file: file.late_constants),
        "renamed": sum(file.renamed for file in files),
        "fmt: skip": sum(file.skipped for file in files),
    }


def _files_with(files: list[Module], count: Callable[[Module], int]) -> int:
    return sum(map(bool, map(count, files)))


def _spread(lengths: Iterator[int]) -> str:
    ordered = sorted(lengths) or [0]
    return " / ".join(str(ordered[int(share * (len(ordered) - 1))]) for share in (0.5, 0.9, 1))


def main(argv: list[str] | None = None) -> None:
    """Print the table or JSON, or hold the product to a number of tokens: the end is 1 where it has more."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--root", type=Path, default=ROOT, help="the clone that is counted; default: this one"
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--at-most", type=int, metavar="TOKENS", help="of the product; prints nothing else")
    asked = parser.parse_args(argv)
    rows = report(asked.root)
    if asked.at_most is None:
        print(json.dumps(rows) if asked.json else table(rows))
    elif (tokens := rows["product"]["tokens"]) > asked.at_most:
        sys.exit(
            f"the product has {tokens:,} tokens, {tokens - asked.at_most:,} more than TOKENS in the Makefile allows: "
            "take out what is repeated or dead (python -m benchmarks.size shows each folder's), or raise the number "
            "with a reason"
        )


if __name__ == "__main__":
    main()
