"""Sources of candles: Binance Vision, a mirror's URL or folder, a user's tables, or the market simulator."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path
from urllib.parse import urlsplit

from schemas.errors import UsageError
from schemas.identity import APART, OWN, SIM
from schemas.scope import Scope
from schemas.tables import is_table
from tasks.market.client import BINANCE, BINANCE_BUCKET, BINANCE_REST, CONNECTIONS, HttpSource, Limits
from tasks.market.faults import NotFound, SourceFault
from tasks.market.layout import Remote
from tasks.market.tables import TableSource
from tasks.storage.urls import public_url


@dataclass
class FolderSource:
    """A folder with Binance Vision's layout.

    Links inside the folder are followed only within it: a mirror filled by other users must not make cpb read, and
    quarantine, other files of this machine.
    """

    root: Path
    requests: int = 0
    waits: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.name, self._real_root = str(self.root), self.root.resolve()

    def get(self, key: str, max_bytes: int = 0) -> bytes:
        """Return a file's bytes; raises `NotFound` or `SourceFault`."""
        self.requests += 1
        path = self.root / key
        try:
            if not path.resolve(strict=True).is_relative_to(self._real_root):
                raise SourceFault(
                    f"{path} is a link that leads out of the mirror folder, and is not followed"
                )
            return path.read_bytes()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            raise NotFound(f"{path} is not there") from error
        except (OSError, RuntimeError) as error:  # RuntimeError: a link loop
            raise SourceFault(
                f"{path} cannot be read: {getattr(error, 'strerror', None) or error}"
            ) from error

    def files(self, prefix: str) -> Iterable[Remote]:
        """Yield the files of a folder; modification time and size are used as ETag."""
        self.requests += 1
        folder = self.root / prefix
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if path.suffix == ".zip" and path.is_file():
                info = path.stat()
                modified = formatdate(info.st_mtime, usegmt=True)
                yield Remote(
                    prefix + path.name, f"{info.st_mtime_ns:x}-{info.st_size}", info.st_size, modified
                )

    def folders(self, prefix: str) -> list[str]:
        """Return the names of the folders in a folder."""
        folder = self.root / prefix
        return sorted(p.name for p in folder.iterdir() if p.is_dir()) if folder.is_dir() else []


Source = HttpSource | FolderSource | TableSource


def check_source(scope: Scope) -> None:
    """Raise `UsageError` if a scope's source is neither a URL nor a folder or table of this machine."""
    source = scope.source
    if scope.market == OWN and not is_table(source):
        raise UsageError(
            f"market own is read from a table: give the one it came from, as in --source candles.csv "
            f"(now {public_url(source) if source else 'none'})",
            code="source", field="source",
        )  # fmt: skip
    if scope.market in APART or not source or _is_url(source) or Path(source).is_dir():
        return
    raise UsageError(
        f"source {public_url(source)!r} is neither a URL nor a folder or table; give one, or sim, or leave it out",
        code="source", field="source",
    )  # fmt: skip


@contextmanager
def open_source(
    scope: Scope, connections: int = CONNECTIONS, limits: Limits | None = None
) -> Iterator[Source]:
    """Open Binance Vision, a mirror, a user's tables, or the simulator, as in `scope`; errors as in `check_source`.

    Offline, the store itself.
    """
    check_source(scope)
    limits = limits or Limits()
    with ExitStack() as stack:
        source = scope.source or ""
        if scope.offline:
            opened: Source = FolderSource(scope.root)  # nothing is fetched from it
        elif scope.market == SIM:
            from tasks.market import simulator

            url = stack.enter_context(simulator.serve(until=scope.as_of, since=scope.since))
            opened = HttpSource(url, connections=connections, limits=limits, label="the market simulator")
        elif not source:
            opened = HttpSource(
                BINANCE, BINANCE_BUCKET, BINANCE_REST[scope.market], connections, limits, "Binance Vision"
            )
        elif scope.market == OWN:
            opened = TableSource(Path(source))
        elif _is_url(source):
            opened = HttpSource(source, connections=connections, limits=limits)
        else:
            opened = FolderSource(Path(source))
        if isinstance(opened, HttpSource):
            stack.callback(opened.close)
        yield opened


def _is_url(source: str) -> bool:
    try:
        parts = urlsplit(source)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # invalid brackets or port
        return False
