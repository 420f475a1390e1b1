"""Restricts MLflow's server to the artifacts of one store, whatever location a client has recorded.

A client of the tracking API names the locations that the server reads and writes: an experiment's
`artifact_location`, a logged model's, a version's `source`, a tag of a trace. MLflow opens any of them with the
permissions of the server's user. Here every location is checked where it is opened, and local files are read and
written by a repository of cpb's own: MLflow's interface of artifact plugins (`ArtifactRepository`, marked stable for
developers), whose other methods call the six below.

Not covered: hard links, and symbolic links changed between the check and the opening by someone who can already write
below the root.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from flask import Response
from mlflow.entities import FileInfo
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import PERMISSION_DENIED, RESOURCE_DOES_NOT_EXIST
from mlflow.store.artifact.artifact_repo import ArtifactRepository

from tasks.storage.files import replacing
from tasks.storage.urls import local_path
from tasks.tracking.database import PROXIED, quiet
from tasks.tracking.mlflow_private import configure_server, guard_server, server_app

if TYPE_CHECKING:
    from starlette.types import ASGIApp

REFUSED = "this server reads and writes artifacts only below its own artifact root: keep the files there"
NOT_OFFERED = "this server makes no requests to other hosts: use a notifier of cpb, see docs/notifications.md"

_LOCAL = ("", "file")
_REDIRECTS = ("runs", "models")
"""Schemes whose repository resolves the real location and requests its repository from the registry."""


def served_app(database: str, artifacts: str, *, proxied: bool = True) -> "ASGIApp":
    """Return the app that `mlflow server` runs, without job runner. Every server of MLflow's app is created here.

    MLflow's own check of Host and Origin is off: `flows.ops.guard` checks more strictly. No other location is accessed.

    Args:
        artifacts: URI or path of the root of all artifacts.
        proxied: whether clients send artifacts through the server, which stores them there; else it only shows the
            artifacts stored there.
    """
    quiet()
    places = {"artifacts": artifacts, "root": f"{PROXIED}/"} if proxied else {"root": artifacts}
    configure_server({"database": database, "registry": database, "serve": str(proxied).lower()} | places)
    install(artifacts)
    return server_app()


def install(root: str) -> None:
    """Restrict MLflow's server in this process; call it before the first request, and only in a server process.

    - Local artifacts must be below `root` after resolving all symbolic links; with a remote root, other addresses must
      be below `root`. Anything else is refused with 403.
    - MLflow's assistant (it runs commands and writes local files) has no routes, its AI gateway (it reads keys from
      files and sends requests to addresses given by the client) is off, and webhooks cannot be created, changed or
      tested.

    Args:
        root: folder or URI of the root of the store's artifacts.
    """
    os.environ["MLFLOW_ENABLE_AI_GATEWAY"] = "false"
    os.environ.pop("MLFLOW_DEPLOYMENTS_TARGET", None)  # the target of `gateway-proxy`
    base, folder = root.rstrip("/"), local_path(root)

    def is_below(uri: str) -> bool:
        if folder or {".", ".."} & set(unquote(uri).split("/")):
            return False
        return uri == base or uri.startswith(f"{base}/")

    def open_location(uri: str, by_mlflow: Callable[[], ArtifactRepository]) -> ArtifactRepository:
        scheme = urlsplit(uri).scheme
        if scheme in _LOCAL and folder:
            return Confined(uri, folder)
        redirects = scheme in _REDIRECTS and not urlsplit(uri).netloc
        if not redirects and not is_below(uri):
            raise _refused()
        try:
            return by_mlflow()
        except MlflowException as error:
            if error.get_http_status_code() < 500:
                raise
            raise _refused() from error  # an invalid address, such as models:/m/1/RUN/artifacts

    guard_server(open_location, _not_offered)


def _not_offered(**_parameters: str) -> Response:
    return Response(f"{NOT_OFFERED}\n", 403, mimetype="text/plain")


def _refused() -> MlflowException:
    # No path in the message: the target of a link must not be revealed to the client.
    return MlflowException(REFUSED, error_code=PERMISSION_DENIED)


class Confined(ArtifactRepository):  # type: ignore[misc]  # MLflow's class has no types
    """Artifacts in a local folder; every method resolves all symbolic links of its path first.

    The test of this module lists the methods of the base class, and fails for an unknown method.

    Raises:
        MlflowException: a path is not below the root and the folder (403).
    """

    def __init__(self, artifact_uri: str, root: Path) -> None:
        super().__init__(artifact_uri)
        folder = local_path(artifact_uri)
        if folder is None:
            raise _refused()
        self._folder, self._root = folder, root.resolve()
        self._real(None)

    def _real(self, artifact_path: str | None) -> Path:
        """Return the place of a path in the folder, with all symbolic links resolved."""
        path = PurePosixPath(os.path.normpath(artifact_path or "."))
        real = (self._folder / path).resolve()
        if path.is_absolute() or ".." in path.parts or not real.is_relative_to(self._root):
            raise _refused()
        return real

    def get_local_path(self, artifact_path: str) -> str:
        """Return the real path of the file that the server sends; 404 if it is missing."""
        real = self._real(artifact_path)
        if not real.exists():
            raise MlflowException(f"No such artifact: {artifact_path!r}", error_code=RESOURCE_DOES_NOT_EXIST)
        return str(real)

    def _download_file(self, remote_file_path: str, local_path: str) -> None:
        shutil.copy2(self.get_local_path(remote_file_path), local_path)

    def list_artifacts(self, path: str | None = None) -> list[FileInfo]:
        """List a folder without hidden drafts, and without links that point outside the root or to nothing."""
        folder, found = self._real(path), []
        for entry in sorted(folder.iterdir()) if folder.is_dir() else ():
            if entry.resolve().is_relative_to(self._root) and entry.exists():
                name = (PurePosixPath(os.path.normpath(path or ".")) / entry.name).as_posix()
                found.append(FileInfo(name, entry.is_dir(), None if entry.is_dir() else entry.stat().st_size))
        return found

    def log_artifact(self, local_file: str | Path, artifact_path: str | None = None) -> None:
        """Copy a file into a folder of the artifacts, atomically."""
        name = Path(local_file).name
        with replacing(self._real(f"{artifact_path}/{name}" if artifact_path else name)) as draft:
            shutil.copyfile(local_file, draft)

    def log_artifacts(self, local_dir: str | Path, artifact_path: str | None = None) -> None:
        """Copy a folder file by file."""
        for file in sorted(path for path in Path(local_dir).rglob("*") if path.is_file()):
            place = PurePosixPath(artifact_path or ".") / file.parent.relative_to(local_dir)
            self.log_artifact(file, place.as_posix())

    def delete_artifacts(self, artifact_path: str | None = None) -> None:
        """Delete a file or folder."""
        place = self._real(artifact_path)
        if place.is_dir():
            shutil.rmtree(place)
        else:
            place.unlink(missing_ok=True)
