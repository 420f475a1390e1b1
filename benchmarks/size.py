"""How large the code is: `python -m benchmarks.size [--json]`.

Counted are lines that hold code: no blank lines, no comments, no docstrings (strings that stand by themselves, under a
name as well), and the names, keywords, operators and numbers in them. A file without code, such as an empty
`__init__.py`, is not counted.
"""

import argparse
import ast
import io
import json
import tokenize
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks._paired import table

ROOT = Path(__file__).parents[1]
PRODUCT = ("flows", "tasks", "cpbmodels", "schemas", "webapp")
_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
_WORDS = {tokenize.NAME, tokenize.OP, tokenize.NUMBER}


@dataclass(frozen=True)
class Module:
    """Lines of code of one file, and the names, keywords, operators and numbers in them; `path` is below the root."""

    path: str
    lines: int
    tokens: int


def module(path: str, source: str) -> Module:
    """Count one file's source."""
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    code = {
        line
        for token in tokens
        if token.type not in _NO_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            code.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return Module(path, len(code), sum(token.type in _WORDS for token in tokens))


def modules(root: Path, package: str) -> list[Module]:
    """Count a package's files that hold code, by path."""
    counted = [
        module(path.relative_to(root).as_posix(), path.read_text())
        for path in sorted((root / package).rglob("*.py"))
    ]
    return [file for file in counted if file.lines]


def report(root: Path) -> dict[str, dict[str, Any]]:
    """Return a row for the product, the benchmarks and the tests, then for each folder of the product."""
    product = [file for package in PRODUCT for file in modules(root, package)]
    rows = {"product": product} | {name: modules(root, name) for name in ("benchmarks", "tests")}
    for file in product:
        rows.setdefault("/".join(file.path.split("/")[:-1][:2]), []).append(file)
    return {
        name: {
            "files": len(files),
            "lines": sum(file.lines for file in files),
            "tokens": sum(file.tokens for file in files),
            "largest file": max((file.lines for file in files), default=0),
        }
        for name, files in rows.items()
    }


def main(argv: list[str] | None = None) -> None:
    """Print the table or JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--root", type=Path, default=ROOT, help="the clone that is counted; default: this one"
    )
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(argv)
    rows = report(asked.root)
    print(json.dumps(rows) if asked.json else table(rows))


if __name__ == "__main__":
    main()
