"""Digests: of files, of values, and of the source code that decides a result."""

import ast
import hashlib
import json
import threading
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def file_digest(path: Path) -> str:
    """Return the sha256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def value_digest(value: Any) -> str:
    """Return the sha256 of a JSON value in canonical form (sorted keys, no spaces)."""
    return hashlib.sha256(canonical(value)).hexdigest()


def canonical(value: Any) -> bytes:
    """Return the canonical JSON of a value; dates and paths become texts."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str).encode()


def code_digest(*places: str, without: tuple[str, ...] = ()) -> str:
    """Return a digest (16 hex digits) of Python sources and of every module of this project that they import.

    A stored result that was made by other code is not used. Imports are followed, because a list of files that
    decide a result is forgotten when one is added. Comments, docstrings and layout do not count.

    Args:
        places: files or folders, relative to the project's root. Modules that are imported by name at run time
            (`import_module`) must be named by their folder.
        without: files or folders that decide no result; their imports are not followed.
    """
    with _parsing:
        return _code_digest(places, without)


_parsing = threading.Lock()
"""Python 3.11's `ast.parse` counts its depth once for all threads: where garbage collection runs Python code in the
middle of one, another thread's parse makes it end in a SystemError."""


@cache
def _code_digest(places: tuple[str, ...], without: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for file, tree in _with_imports(places, without).items():
        digest.update(file.relative_to(ROOT).as_posix().encode())
        digest.update(ast.dump(_WithoutTexts().visit(tree)).encode())
    return digest.hexdigest()[:16]


class _WithoutTexts(ast.NodeTransformer):
    """Removes docstrings, and the texts below constants that describe them."""

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        is_text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return None if is_text else node


def _with_imports(places: Iterable[str], without: Iterable[str] = ()) -> dict[Path, ast.Module]:
    """Return the syntax tree of each source, in the order of their paths."""
    skipped = {file for place in without for file in _python_files(ROOT / place)}
    waiting = [file for place in places for file in _python_files(ROOT / place)]
    found: dict[Path, ast.Module] = {}
    while waiting:
        file = waiting.pop()
        if file not in found and file not in skipped:
            found[file] = ast.parse(file.read_bytes())
            waiting += [path for name in _imported(found[file]) if (path := _module_file(name))]
    return dict(sorted(found.items()))


def _python_files(path: Path) -> list[Path]:
    if not path.exists():
        raise FileNotFoundError(f"no source at {path}: the list of what decides a result is out of date")
    return list(path.rglob("*.py")) if path.is_dir() else [path]


def _imported(tree: ast.Module) -> Iterator[str]:
    """Yield the names that a module imports: `from a.b import c` may mean the module `a.b` or `a.b.c`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _module_file(name: str) -> Path | None:
    """Return the source of one of this project's modules, None for anything else."""
    path = ROOT / name.replace(".", "/")
    files = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in files if file.is_file()), None)
