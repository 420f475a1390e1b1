"""The digest of source code: what was made by different code is not used."""

import ast
import hashlib
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

from tasks.storage.arrays import PARSING

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"flows", "tasks", "schemas", "webapp", "cpbmodels"}
"""This project's packages: installed as a wheel, third-party packages lie in the same folder."""

_PARSINGS = 20  # attempts


def code_digest(*places: str, without: tuple[str, ...] = ()) -> str:
    """Return a digest (16 hex digits) of Python sources and of every module of this project that they import.

    A stored result made by different code is not used. Imports are followed, because a manual list of files would not
    be updated when a file is added. Comments, docstrings and layout do not count.

    Args:
        places: files or folders, relative to the project's root. Modules imported by name at run time
            (`import_module`) must be named by their folder.
        without: files or folders that do not affect the result; their imports are not followed.
    """
    with PARSING:
        return _code_digest(places, without)


@cache
def _code_digest(places: tuple[str, ...], without: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for file, code in source_files(places, without).items():
        digest.update(file.relative_to(ROOT).as_posix().encode())
        digest.update(code.encode())
    return digest.hexdigest()[:16]


def source_files(places: tuple[str, ...], without: tuple[str, ...] = ()) -> dict[Path, str]:
    """Return the syntax tree of each source of `code_digest` as text, ordered by path."""
    skipped = {file for place in without for file in _python_files(ROOT / place)}
    waiting = [file for place in places for file in _python_files(ROOT / place)]
    sources: dict[Path, str] = {}
    while waiting:
        file = waiting.pop()
        if file not in sources and file not in skipped:
            sources[file], imported = _parse(file.read_bytes())
            waiting += [path for name in imported if (path := _module_file(name))]
    return dict(sorted(sources.items()))


@cache  # the digests of a process share most of their files
def _parse(source: bytes) -> tuple[str, tuple[str, ...]]:
    """Return a source's syntax tree as text without docstrings, and the names that it imports."""
    tree = _tree(source)
    imported: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            # `from a.b import c` may refer to the module `a.b` or `a.b.c`
            imported += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return ast.dump(_WithoutTexts().visit(tree)), tuple(imported)


def _tree(source: bytes) -> ast.Module:
    """Return a source's syntax tree.

    CPython 3.11 counts the depth of trees for all threads together, and may raise SystemError when another thread, such
    as a library's, parses at the same time (https://github.com/python/cpython/issues/106905).
    """
    for _ in range(_PARSINGS):
        with suppress(SystemError):
            return ast.parse(source)
        time.sleep(0.01)
    return ast.parse(source)


class _WithoutTexts(ast.NodeTransformer):
    """Removes docstrings, also those of constants."""

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return None if text else node


def _python_files(path: Path) -> list[Path]:
    if not path.exists():
        raise FileNotFoundError(
            f"no source at {path}: the list of sources that determine a result is out of date"
        )
    return list(path.rglob("*.py")) if path.is_dir() else [path]


def _module_file(name: str) -> Path | None:
    """Return the source file of a module of this project, None for other modules."""
    if name.partition(".")[0] not in PACKAGES:
        return None
    path = ROOT / name.replace(".", "/")
    files = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in files if file.is_file()), None)
