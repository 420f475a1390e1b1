"""Files that many runs' artifacts have alike are stored once on this machine: `ROOT/shared/SHA256`, linked into each.

For MLflow, and for whoever copies a folder, a hard link is a file like any other. Where the file system has none, the
file is copied.
"""

import errno
import os
import re
import shutil
from hashlib import sha256
from pathlib import Path

from tasks.storage.digests import file_digest
from tasks.storage.files import DRAFT, replacing, write_bytes

FOLDER = "shared"
_DIGEST = re.compile(r"[0-9a-f]{64}")
_NO_LINKS = (errno.EPERM, errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


def write_shared(root: Path, path: Path, data: bytes) -> None:
    """Give `path` this content, atomically, as a link to the shared file, which is made where missing or damaged.

    Args:
        root: the folder that holds the runs' folders.
    """
    digest = sha256(data).hexdigest()
    if path.is_file() and file_digest(path) == digest:
        return
    shared = root / FOLDER / digest
    if not shared.is_file() or file_digest(shared) != digest:
        write_bytes(shared, data)
    with replacing(path) as draft:
        _link(shared, draft)


def unused(root: Path) -> list[Path]:
    """Return the shared files of a root that no run links to any more, and what kills left of drafts."""
    folder = root / FOLDER
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    return [file for file in files if _is_own(file) and file.lstat().st_nlink == 1]


def _is_own(file: Path) -> bool:
    draft = DRAFT.fullmatch(file.name)
    named = _DIGEST.fullmatch(draft["name"] if draft else file.name)
    return bool(named) and file.is_file() and not file.is_symlink()


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        shutil.copyfile(source, target)
