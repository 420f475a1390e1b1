"""Digests: of files, of values, and of the source code that determines a result."""

import ast
import hashlib
import json
import threading
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
OWN = {"flows", "tasks", "schemas", "webapp", "cpbmodels"}
"""This project's packages: installed as a wheel, third-party packages lie in the same folder."""


def file_digest(path: Path) -> str:
    """Return the sha256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_fault(path: Path, digest: str | None) -> str:
    """Return the fault of a file with a recorded sha256, "" for none."""
    try:
        is_same = file_digest(path) == digest
    except FileNotFoundError:
        return "it is missing"
    except OSError as error:
        return f"it cannot be read ({error.strerror})"
    return "" if is_same or digest is None else "it is not the file that was written (its sha256 differs)"


def value_digest(value: Any) -> str:
    """Return the sha256 of a JSON value in canonical form (sorted keys, no spaces)."""
    return hashlib.sha256(canonical(value)).hexdigest()


def canonical(value: Any) -> bytes:
    """Return the canonical JSON of a value; dates and paths become strings."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str).encode()


def code_digest(*places: str, without: tuple[str, ...] = ()) -> str:
    """Return a digest (16 hex digits) of Python sources and of every module of this project that they import.

    A stored result made by different code is not used. Imports are followed, because a manual list of files would not
    be updated when a file is added. Comments, docstrings and layout do not count.

    Args:
        places: files or folders, relative to the project's root. Modules imported by name at run time
            (`import_module`) must be named by their folder.
        without: files or folders that do not affect the result; their imports are not followed.
    """
    with _parsing:
        return _code_digest(places, without)


_parsing = threading.Lock()
"""Python 3.11's `ast.parse` counts its depth once for all threads: if garbage collection runs Python code during a
parse, another thread's parse makes it end in a SystemError."""


@cache
def _code_digest(places: tuple[str, ...], without: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for file, code in _with_imports(places, without).items():
        digest.update(file.relative_to(ROOT).as_posix().encode())
        digest.update(code.encode())
    return digest.hexdigest()[:16]


def _with_imports(places: Iterable[str], without: Iterable[str] = ()) -> dict[Path, str]:
    """Return the syntax tree of each source as text, ordered by path."""
    skipped = {file for place in without for file in _python_files(ROOT / place)}
    waiting = [file for place in places for file in _python_files(ROOT / place)]
    found: dict[Path, str] = {}
    while waiting:
        file = waiting.pop()
        if file not in found and file not in skipped:
            found[file], imported = _read(file.read_bytes())
            waiting += [path for name in imported if (path := _module_file(name))]
    return dict(sorted(found.items()))


@cache  # the digests of a process share most of their files
def _read(source: bytes) -> tuple[str, tuple[str, ...]]:
    """Return a source's syntax tree as text without docstrings, and the names that it imports.

    One pass over the tree for both: `ast.dump`, a transformer and `ast.walk` took twice as long per process.
    """
    parts: list[str] = []
    imported: list[str] = []
    _add(ast.parse(source), parts, imported)
    return " ".join(parts), tuple(imported)


def _add(value: Any, parts: list[str], imported: list[str]) -> None:
    """Append a part of a syntax tree: a node, a list of nodes or a constant."""
    if isinstance(value, ast.AST):
        if isinstance(value, ast.Expr) and _is_text(value.value):
            return  # a docstring, also of a constant
        imported += _imported(value)
        parts.append(f"({type(value).__name__}")
        for name in value._fields:
            _add(getattr(value, name, None), parts, imported)
        parts.append(")")
    elif isinstance(value, list):
        parts.append("[")
        for item in value:
            _add(item, parts, imported)
        parts.append("]")
    else:
        parts.append(repr(value))


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _python_files(path: Path) -> list[Path]:
    if not path.exists():
        raise FileNotFoundError(
            f"no source at {path}: the list of sources that determine a result is out of date"
        )
    return list(path.rglob("*.py")) if path.is_dir() else [path]


def _imported(node: ast.AST) -> list[str]:
    """Return the names that a node imports: `from a.b import c` may refer to the module `a.b` or `a.b.c`."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return []


def _module_file(name: str) -> Path | None:
    """Return the source file of a module of this project, None for other modules."""
    if name.partition(".")[0] not in OWN:
        return None
    path = ROOT / name.replace(".", "/")
    files = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in files if file.is_file()), None)
