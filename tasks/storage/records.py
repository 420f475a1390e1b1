"""Records and arrays passed between steps, on disk, and digests: of files, of values and of source code.

A record is a JSON file with its kind, version, subject and digest; all reading and writing of records is in this
module. The digest covers all of these: a file whose digest does not match, or whose subject does not match its path, is
never used.

A member's arrays and pictures end with a digest of their place and their bytes, so that a damaged or exchanged file is
always detected.
"""

import ast
import hashlib
import io
import json
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from cpbmodels.files import open_regular, read_regular
from schemas.errors import DamagedError, log
from schemas.record import Record
from tasks.storage.files import write_bytes, write_json

if TYPE_CHECKING:  # numpy takes a tenth of a second, and `cpb --help` imports this module
    from numpy.typing import NDArray


R = TypeVar("R", bound=Record)
_SEAL_BYTES = 32
_HEAD = ("record", "version", "of", "digest", "body")
ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"flows", "tasks", "schemas", "webapp", "cpbmodels"}
"""This project's packages: installed as a wheel, third-party packages lie in the same folder."""

_PARSINGS = 20  # attempts


def file_digest(path: Path) -> str:
    """Return the sha256 of a file's bytes."""
    with open_regular(path) as file:
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


def write_record(path: Path, record: Record, *, of: str = "", compact: bool = False) -> str:
    """Write a record atomically and return its digest.

    Args:
        of: its subject (a series, a key), which readers check: exchanged files are detected.
        compact: on one line, for records of which there are many.
    """
    body = record.model_dump(mode="json")
    head = {"record": type(record).__name__, "version": record.version, "of": of}
    digest = value_digest(head | {"body": body})
    content = head | {"digest": digest, "body": body}
    if compact:
        write_bytes(path, canonical(content) + b"\n")
    else:
        write_json(path, content)
    return digest


def read_record(path: Path, kind: type[R], *, of: str | None = "") -> R:
    """Return the record in `path`.

    Args:
        of: required subject; None: any, for a copy that is verified by its own sha256.

    Raises:
        FileNotFoundError: the file is missing.
        DamagedError: it is not the file that was written.
    """
    try:
        return parse_record(path, kind, of=of)
    except DamagedError as error:
        raise DamagedError(
            f"{path} is damaged: {error}; run the same command again to recreate it", field=str(path)
        ) from error


def parse_record(path: Path, kind: type[R], *, of: str | None = "") -> R:
    """Return the record in `path`; errors as in `read_record`, but the message is only the reason."""
    return record_in(read_regular(path), kind, of=of)


def record_in(data: bytes, kind: type[R], *, of: str | None = "") -> R:
    """Return the record in the bytes of its file; errors as in `parse_record`."""
    try:
        content = json.loads(data)
        name, version, subject, digest, body = (content[key] for key in _HEAD)
        is_whole = value_digest({key: content[key] for key in _HEAD if key != "digest"}) == digest
    except (ValueError, TypeError, KeyError):
        is_whole = False
    if not is_whole or name != kind.__name__:
        raise DamagedError(f"it is no {kind.__name__} as cpb writes it")
    if of is not None and subject != of:
        raise DamagedError(f"it is the record of {subject or 'nothing'}, not of {of or 'nothing'}")
    if version != kind.version:
        raise DamagedError(f"its version is {version}, and this cpb reads version {kind.version}")
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        place = ".".join(str(part) for part in error.errors()[0]["loc"]) or "body"
        raise DamagedError(f"its field {place} is not valid") from error


def find_record(path: Path, kind: type[R], *, of: str = "") -> R | None:
    """Return the record in `path`, or None if missing or damaged, which is logged: its writer makes it anew."""
    try:
        return read_record(path, kind, of=of)
    except FileNotFoundError:
        return None
    except DamagedError as error:
        warn_once(str(error))
        return None


@cache
def warn_once(text: str) -> None:
    """Log a warning once per process: page reloads must not fill the log."""
    log.warning("%s", text)


def member_subject(path: Path) -> str:
    """Return the subject of a file of a fleet's member, `KEY/BTCUSDT-1h/loss.png`, also within a draft.

    Args:
        path: `KEY/members/BTCUSDT-1h/FILE` or `KEY/members/BTCUSDT-1h/model/FILE`, below `fleets`.
    """
    member = path.parent.parent if path.parent.name == "model" else path.parent
    return f"{member.parent.parent.name}/{member.name}/{path.name}"


def write_sealed(path: Path, content: bytes | memoryview) -> None:
    """Write a file of a fleet's member, atomically, followed by a digest that readers of PNG and npz ignore."""
    write_bytes(path, bytes(content) + _seal(path, content))


def read_sealed(path: Path) -> memoryview:
    """Return the content of a file written by `write_sealed`.

    Raises:
        FileNotFoundError: the file is missing.
        DamagedError: it is not the file that was written there.
    """
    content = memoryview(read_regular(path))
    if content[-_SEAL_BYTES:] != _seal(path, content[:-_SEAL_BYTES]):
        raise DamagedError(f"{path} is damaged; it will be recreated", field=str(path))
    return content[:-_SEAL_BYTES]


def _seal(path: Path, content: bytes | memoryview) -> bytes:
    digest = hashlib.sha256(member_subject(path).encode())
    digest.update(content)
    return digest.digest()


def write_npz(path: Path, arrays: "Mapping[str, NDArray[Any]]") -> None:
    """Write arrays of a member, atomically."""
    import numpy as np

    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    write_sealed(path, buffer.getbuffer())


_parsing = threading.Lock()
"""Python 3.11's `ast.parse` counts its depth once for all threads: if garbage collection runs Python code during a
parse, another thread's parse makes it end in a SystemError. numpy parses the header of every array that it reads."""


def read_npz(path: Path) -> "dict[str, NDArray[Any]]":
    """Return the arrays of an npz file by name; errors as in `read_sealed`."""
    import numpy as np

    content = io.BytesIO(read_sealed(path))
    with _parsing, np.load(content, allow_pickle=False) as arrays:
        return dict(arrays)


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
