"""The manifest's file: opened, checked, and made anew from its intact rows if it is damaged.

It is checked whenever it is opened (17 ms for 40 series of four years). Of a damaged manifest the intact rows are used;
what the others recorded is fetched again.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from schemas.errors import CpbError, log
from tasks.market.manifest import ENDINGS, MANIFEST, SQLITE_ERRORS, Manifest, connect, is_corrupt, unusable
from tasks.market.store_files import has_candles
from tasks.storage.files import DiskFull, draft_name, is_disk_full


def manifest_damage(path: Path, *, read_only: bool = False) -> str:
    """Return the damage of a manifest file, or ""; `read_only` and other errors as in `Manifest`.

    A missing or empty file is damage where months of candles are stored.
    """
    try:
        if not path.stat().st_size:
            return "it is empty, though candles are stored" if has_candles(path.parent) else ""
    except FileNotFoundError:
        return "it is missing, though candles are stored" if has_candles(path.parent) else ""
    try:
        with Manifest(path, read_only=read_only) as manifest:
            return manifest.damage()
    except CpbError as error:
        if error.code != "damaged":
            raise
        return str(error.__cause__ or error)


@contextmanager
def intact_manifest(path: Path, *, read_only: bool = False) -> Iterator[Manifest]:
    """Yield a manifest; of a damaged or missing file, with its `fault`, a copy of its intact rows in memory."""
    damage = manifest_damage(path, read_only=read_only)
    # in memory: a reader must not replace the file, which a writer may be using
    if damage or not path.exists():
        with Manifest(Path(":memory:")) as manifest:
            if damage and path.exists():
                _copy_damaged(path, manifest, read_only=read_only)
            manifest.fault = damage
            yield manifest
    else:
        with Manifest(path, read_only=read_only) as manifest:
            yield manifest


def _copy_damaged(path: Path, manifest: Manifest, *, read_only: bool) -> None:
    with suppress(*SQLITE_ERRORS), closing(connect(path, read_only=read_only)) as db:
        manifest.copy_intact(db)


def _rebuild(path: Path) -> None:
    """Replace a damaged manifest with one of its intact rows; the caller is the only writer.

    The damaged file is renamed, with the ending `.damaged`.
    """
    draft = draft_name(path)
    try:
        # made beside it and renamed: a run killed here leaves the damaged file for the next one
        with Manifest(draft) as manifest:
            if path.exists():
                _copy_damaged(path, manifest, read_only=False)
        # the journals of the damaged file must go with it, or SQLite would replay them into the new one
        for file in (path.with_name(path.name + ending) for ending in ENDINGS):
            if file.exists():
                file.replace(f"{file}.damaged")
        draft.replace(path)
    finally:
        for file in (draft.with_name(draft.name + ending) for ending in ENDINGS):
            file.unlink(missing_ok=True)


@contextmanager
def open_manifest(root: Path, *, offline: bool) -> Iterator[Manifest]:
    """Open the manifest of a market home; of a damaged one only the intact rows are used.

    A damaged file is set aside and replaced; offline, nothing is created or replaced.
    """
    path = root / MANIFEST
    try:
        if offline:
            with intact_manifest(path, read_only=not os.access(root, os.W_OK)) as manifest:
                if manifest.fault:
                    log.warning(
                        "%s is damaged (%s): its intact rows are used, and `cpb ingest` fetches what "
                        "the others recorded",
                        path,
                        manifest.fault,
                    )
                yield manifest
            return
        if damage := manifest_damage(path):
            log.warning(
                "%s is damaged (%s) and replaced: its intact rows are kept, and what the others recorded is "
                "fetched again",
                path,
                damage,
            )
            _rebuild(path)
        with Manifest(path) as manifest:
            yield manifest
    except Exception as error:
        # a full disk comes as one of SQLite's errors or as an OSError: asked first, as neither is damage
        if not isinstance(error, CpbError) and is_disk_full(error):
            raise DiskFull(f"no space left in {root}: free some, or set CPB_HOME to another disk") from error
        if is_corrupt(error, path):
            raise unusable(path, error) from error
        if isinstance(error, OSError | sqlite3.Error):
            raise CpbError(
                f"cannot work in {root} ({error}); set CPB_HOME to a folder you own", code="store"
            ) from error
        raise
