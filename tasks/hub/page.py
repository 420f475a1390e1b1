"""The page as files in a folder: only what changed is written, and only what cpb wrote is replaced or removed.

A page says of itself in `page.json` whose market it shows, when it was made, and whether a night made it. This file is
written last, so that an open page finds a change whole; `SHA256SUMS` names the other files, which are cpb's own.
"""

import hashlib
import json
from collections.abc import Collection, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from schemas.errors import CpbError
from tasks.hub.tree import SUMS, read_sums
from tasks.storage.files import final_path, read_json_or_none, remove_empty, write_bytes
from tasks.storage.folders import folder_lock

ABOUT = "page.json"
START = "index.html"


def about_page(market: str, *, nightly: bool) -> bytes:
    """Return the content of `page.json` of a page that is made now."""
    made = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
    return json.dumps({"cpb": "page", "market": market, "made": made, "nightly": nightly}).encode()


def check_about(about: object, market: str, place: str) -> None:
    """Raise `CpbError` unless `about`, the content of a `page.json`, is of a page of this market."""
    if not (isinstance(about, dict) and (about.get("cpb"), about.get("market")) == ("page", market)):
        raise CpbError(
            f"{place} is neither empty nor cpb's page of market {market}, so nothing was written: name a new one",
            code="foreign-folder",
            field=place,
        )


def check_folder(folder: Path, market: str) -> bool:
    """Return whether a folder is a page of this market, rather than missing or empty.

    Raises:
        CpbError: it is neither, or is a file.
    """
    if folder.exists() and not folder.is_dir():
        raise CpbError(
            f"{folder} is a file, so nothing was written: name a folder",
            code="foreign-folder",
            field=str(folder),
        )
    if not folder.exists() or all(_is_draft(path.name, {ABOUT}) for path in folder.iterdir()):
        return False
    check_about(read_json_or_none(folder / ABOUT), market, str(folder))
    return True


def foreign_file(file: str, place: str) -> CpbError:
    """Return the error of a file in the place of a page's that cpb did not write; `place`: the folder or Space."""
    return CpbError(
        f"{file} was not written by cpb, so nothing was changed: move it elsewhere, or name a new place",
        code="foreign-folder",
        field=place,
    )


def with_sums(files: Mapping[str, bytes], earlier: Mapping[str, str] | None = None) -> dict[str, bytes]:
    """Return the files and their list of sha256, which also has those of `earlier`, as `read_sums` returns them."""
    sums = {**(earlier or {}), **{name: hashlib.sha256(data).hexdigest() for name, data in files.items()}}
    listed = "".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items()))
    return {**files, SUMS: listed.encode()}


def write_page(files: Mapping[str, bytes], folder: Path, market: str, *, nightly: bool = False) -> bool:
    """Bring the folder of a page up to date; return whether anything had changed.

    Args:
        files: of the page, by path; new ones come with an empty or a missing folder.
        nightly: whether a run made it that will make it again.

    Raises:
        CpbError: the folder is neither empty nor a page of this market, or has a file in the place of a page's.
        DamagedError: its list of files is none.
        DiskFull: no space left; the same command finishes what was begun.
    """
    with folder_lock(folder.resolve()):
        return _write(files, folder, market, nightly=nightly)


def _write(files: Mapping[str, bytes], folder: Path, market: str, *, nightly: bool) -> bool:
    earlier = dict[str, str]()
    if check_folder(folder, market):
        with suppress(FileNotFoundError):
            earlier = read_sums(folder)
    wanted = with_sums(files)
    changed = {name: data for name, data in wanted.items() if not _holds(folder / name, data)}
    removed = earlier.keys() - files.keys()
    own = {*earlier, SUMS, ABOUT}
    for name in (*changed, *removed):
        # A link in its place may lead anywhere, and a list of files that came from elsewhere, too.
        place = folder / name
        is_inside = str(place.resolve()) == f"{folder.resolve()}/{name}"  # of an absolute name, too
        if not is_inside or place.is_dir() or (name not in own and place.exists()):
            raise foreign_file(str(place), str(folder))
    for path in folder.rglob(".*"):  # what a kill left, which a server would show
        if path.is_file() and _is_draft(path.relative_to(folder).as_posix(), {*wanted, *own}):
            path.unlink()
    if not changed and not removed:
        return False
    about = about_page(market, nightly=nightly)
    if not earlier:
        write_bytes(folder / ABOUT, about)
    # First the list of all, so that after a kill the next run knows each as its own.
    write_bytes(folder / SUMS, with_sums(files, earlier)[SUMS])
    # The start last: what a full disk leaves in a new folder does not open as a page.
    for name in sorted(changed.keys() - {SUMS}, key=lambda name: (name == START, name)):
        write_bytes(folder / name, changed[name])
    for name in removed:
        (folder / name).unlink(missing_ok=True)
        for parent in Path(name).parents[:-1]:
            remove_empty(folder / parent)
    write_bytes(folder / SUMS, wanted[SUMS])
    write_bytes(folder / ABOUT, about)
    return True


def _is_draft(path: str, own: Collection[str]) -> bool:
    return final_path(path) != path and final_path(path) in own


def _holds(path: Path, data: bytes) -> bool:
    return path.is_file() and path.read_bytes() == data
