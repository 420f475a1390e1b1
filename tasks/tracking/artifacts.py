"""Artifacts of runs: in a folder of this machine, or in a tracking server's artifact store."""

import os
import re
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from schemas.errors import CpbError, DamagedError
from schemas.scope import home as home_folder
from tasks.storage.digests import file_digest
from tasks.storage.files import final_path, new_folder
from tasks.storage.model_folder import FILES, damage_of, file_digests
from tasks.storage.urls import local_path
from tasks.tracking.connection import Store
from tasks.tracking.database import store_errors
from tasks.tracking.tags import MLFLOW_FILES, digests_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from mlflow.entities import Run
    from mlflow.entities.model_registry import ModelVersion

COPIES = "champions"
"""Folder below the home for champions fetched from a tracking server."""
LOADED = "registered_model_meta"
"""Written by MLflow into a local registered model's folder when it loads the model."""
_COPY = re.compile(r"cpb-.+-\d+-[0-9a-f]{12}")


def check_place(store: Store) -> None:
    """Raise `CpbError` if artifacts of new runs could not be written: before the training, not after it."""
    folder = local_path(store.artifacts)
    if folder and not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
        raise CpbError(
            f"artifacts of runs cannot be written to {folder}, which is not a folder of this machine that you can "
            "write to; make it one, or set MLFLOW_TRACKING_URI to another store",
            code="artifacts", field=str(folder),
        )  # fmt: skip


def digests_to_log(folder: Path, expected: "Mapping[str, str]") -> dict[str, str]:
    """Return the sha256 of each file of a model folder before it is logged.

    Args:
        expected: digests recorded when the files were written, which the files must match.

    Raises:
        CpbError: the folder is missing.
        DamagedError: a file does not match its recorded digest.
    """
    if not folder.is_dir():
        raise CpbError(
            f"the model folder {folder} does not exist; run the same command again to train it",
            code="no-model",
        )
    found = file_digests(folder)
    changed = [name for name, digest in expected.items() if found.get(name) != digest]
    if changed:
        raise DamagedError(
            f"{folder / changed[0]} is not the file that was trained (its sha256 differs); "
            f"remove {folder.parent} and run the same command again",
            field=str(folder / changed[0]),
        )
    return found


def damaged(folder: Path, digests: "Mapping[str, str]") -> list[str]:
    """Return the names of recorded files that are missing or damaged in a folder."""
    return [n for n, d in digests.items() if not (folder / n).is_file() or file_digest(folder / n) != d]


def mend_files(store: Store, run: "Run", folder: Path) -> bool:
    """Copy the files of a finished run again if any of them is not the file that its tag `files` records.

    Intact files stay, also if the same training was repeated: its `config.json` then differs, by seconds and memory,
    and versions are registered with the digest of the first.

    Args:
        folder: the model's folder.

    Returns:
        Whether the files were copied.
    """
    target = local_path(run.info.artifact_uri)
    if target is None or not damaged(target, digests_of(run.data.tags)):
        return False
    store.client.log_artifacts(run.info.run_id, str(folder))
    return True


def logged_names(tags: "Mapping[str, str]") -> frozenset[str]:
    """Return the names of the artifacts that cpb logged to a run, or MLflow wrote beside them, from the run's tags."""
    return frozenset({*digests_of(tags), *digests_of(tags, MLFLOW_FILES), LOADED})


def unlogged_file(store: Store, run_id: str, uri: str, names: "Collection[str]") -> str:
    """Return why a run's artifacts may not be deleted: a file that is not one of `names`, or "" for none."""
    folder = local_path(uri)  # ROOT/RUN/artifacts
    if folder and not folder.parent.parent.is_dir():
        return "its artifacts are on another machine"
    files = _files_below(folder) if folder else _listed(store, run_id)
    name = next((name for name in files if final_path(name) not in names), "")
    return f"it holds {name}, which cpb did not log" if name else ""


def _files_below(folder: Path) -> "Iterator[str]":
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not path.is_dir():
            yield path.relative_to(folder).as_posix()


def _listed(store: Store, run_id: str, path: str | None = None) -> "Iterator[str]":
    for file in store.client.list_artifacts(run_id, path):
        if file.is_dir:
            yield from _listed(store, run_id, file.path)
        else:
            yield file.path


def model_folder(store: Store, version: "ModelVersion", digests: "Mapping[str, str]") -> tuple[Path, str]:
    """Return the folder of a registered model on this machine, and its damage ("" for none).

    From a tracking server it is fetched once per version, and again if the local copy is damaged.
    """
    source = version.source or ""
    if local := local_path(source):
        return local, damage_of(local, digests)
    target = (home_folder() / COPIES / _copy_name(version)).absolute()
    if target.is_dir() and not damage_of(target, digests):
        return target, ""
    import mlflow

    try:
        with store_errors(store.uri), TemporaryDirectory() as part, new_folder(target) as draft:
            fetched = mlflow.artifacts.download_artifacts(source, dst_path=part, tracking_uri=store.uri)
            for file in Path(fetched).iterdir():
                if file.name in FILES:
                    shutil.copyfile(file, draft / file.name)
    except CpbError as error:  # the other models are still read
        return target, str(error)
    return target, damage_of(target, digests)


def old_copies(home: Path, versions: "Iterable[ModelVersion]") -> list[Path]:
    """Return the folders of fetched models other than these versions."""
    current = {_copy_name(version) for version in versions}
    folders = sorted((home / COPIES).absolute().glob("*/"))
    return [folder for folder in folders if _COPY.fullmatch(folder.name) and folder.name not in current]


def _copy_name(version: "ModelVersion") -> str:
    # With the run's id: another server may have a different model of the same name and number.
    return f"{version.name}-{version.version}-{(version.run_id or '')[:12]}"
