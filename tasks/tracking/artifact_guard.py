"""Restricts MLflow's server to the artifacts of one store, whatever location a client has recorded.

A client of the tracking API names the locations that the server reads and writes: an experiment's
`artifact_location`, a logged model's, a version's `source`, a tag of a trace. MLflow opens any of them with the
permissions of the server's user. The check here is made where a location is opened: in the registry of artifact
repositories, and in the methods of the repository for local files, which receive every path after all decoding.

Not covered: hard links, and symbolic links changed between the check and the opening by someone who can already write
below the root.
"""

import os
import shutil
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from flask import Response
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import PERMISSION_DENIED
from mlflow.store.artifact import artifact_repository_registry
from mlflow.store.artifact.artifact_repo import ArtifactRepository
from mlflow.store.artifact.local_artifact_repo import LocalArtifactRepository
from mlflow.tracing.utils.artifact_utils import TRACE_DATA_FILE_NAME
from mlflow.utils.file_utils import local_file_uri_to_path
from mlflow.utils.uri import get_uri_scheme

from tasks.tracking.mlflow_private import PROXIED, local_path, quiet

if TYPE_CHECKING:
    from starlette.types import ASGIApp

REFUSED = "this server reads and writes artifacts only below its own artifact root: keep the files there"
NOT_OFFERED = "this server makes no requests to other hosts: use a notifier of cpb, see docs/notifications.md"

_LOCAL = ("", "file")
_REDIRECTS = ("runs", "models")
"""Schemes whose repository resolves the real location and requests its repository from the registry."""
_WEBHOOKS = ("_create_webhook", "_update_webhook", "_test_webhook")
"""Endpoints by which a client makes the server send requests to an address of its choice."""


SERVED = {
    "database": "_MLFLOW_SERVER_FILE_STORE",
    "registry": "_MLFLOW_SERVER_REGISTRY_STORE",
    "artifacts": "_MLFLOW_SERVER_ARTIFACT_DESTINATION",
    "root": "_MLFLOW_SERVER_ARTIFACT_ROOT",
    "serve": "_MLFLOW_SERVER_SERVE_ARTIFACTS",
}
"""Variables from which MLflow's server app takes its options (3.17.2, `mlflow.server.constants`).

They must be set before `mlflow.server` is imported, so the names cannot be imported from there.
"""


def served_app(database: str, artifacts: str, *, proxied: bool = True) -> "ASGIApp":
    """Return the app that `mlflow server` runs, without job runner. Every server of MLflow's app is created here.

    MLflow's own check of Host and Origin is off: `flows.ops.guard` checks more strictly. No other location is accessed.

    Args:
        artifacts: URI or path of the root of all artifacts.
        proxied: whether clients send artifacts through the server, which stores them there; else it only shows the
            artifacts stored there.

    3.17.2: `mlflow.server.fastapi_app.app`, `mlflow.server._run_server`.
    """
    quiet()
    places = {"artifacts": artifacts, "root": f"{PROXIED}/"} if proxied else {"root": artifacts}
    values = {"database": database, "registry": database, "serve": str(proxied).lower()} | places
    os.environ |= {SERVED[name]: value for name, value in values.items()} | {
        "_MLFLOW_SGI_NAME": "uvicorn", "_MLFLOW_IN_JOB_EXECUTOR": "false",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_SERVER_DISABLE_SECURITY_MIDDLEWARE": "true",
    }  # fmt: skip
    install(artifacts)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # Starlette's WSGI adapter is deprecated
        from mlflow.server.fastapi_app import app

    return app


def install(root: str) -> None:
    """Restrict MLflow's server in this process; call it before the first request, and only in a server process.

    - Local artifacts must be below `root` after resolving all symbolic links; with a remote root, other addresses must
      be below `root`. Anything else is refused with 403.
    - MLflow's assistant (it runs commands and writes local files) has no routes, its AI gateway (it reads keys from
      files and sends requests to addresses given by the client) is off, and webhooks cannot be created, changed or
      tested.

    Args:
        root: folder or URI of the root of the store's artifacts.

    3.17.2: `_artifact_repository_registry` of `mlflow.store.artifact.artifact_repository_registry`, which all handlers
    and stores use; `mlflow.server.assistant.api.assistant_router`; `mlflow.server.app`.
    """
    os.environ["MLFLOW_ENABLE_AI_GATEWAY"] = "false"
    os.environ.pop("MLFLOW_DEPLOYMENTS_TARGET", None)  # the target of `gateway-proxy`
    artifact_repository_registry._artifact_repository_registry = _Places(root)
    from mlflow.server import app
    from mlflow.server.assistant.api import assistant_router

    assistant_router.routes.clear()
    app.view_functions |= dict.fromkeys(_WEBHOOKS, _not_offered)


def _not_offered(**_parameters: str) -> Response:
    return Response(f"{NOT_OFFERED}\n", 403, mimetype="text/plain")


def _refused() -> MlflowException:
    # No path in the message: the target of a link must not be revealed to the client.
    return MlflowException(REFUSED, error_code=PERMISSION_DENIED)


class _Places(artifact_repository_registry.ArtifactRepositoryRegistry):
    """The artifact repositories that a server may use."""

    def __init__(self, root: str) -> None:
        self._registry = artifact_repository_registry.get_registered_artifact_repositories()
        self._root, self._folder = root.rstrip("/"), local_path(root)

    def get_artifact_repository(
        self, artifact_uri: str, tracking_uri: str | None = None, registry_uri: str | None = None
    ) -> ArtifactRepository:
        """Return the repository of a location.

        Raises:
            MlflowException: it is not in the store (403).
        """
        scheme = get_uri_scheme(artifact_uri)
        if scheme in _LOCAL and self._folder:
            return Confined(artifact_uri, tracking_uri, registry_uri, self._folder)
        redirects = scheme in _REDIRECTS and not urlsplit(artifact_uri).netloc
        if not redirects and not self._is_below(artifact_uri):
            raise _refused()
        try:
            return super().get_artifact_repository(artifact_uri, tracking_uri, registry_uri)
        except MlflowException as error:
            if error.get_http_status_code() < 500:
                raise
            raise _refused() from error  # an invalid address, such as models:/m/1/RUN/artifacts

    def _is_below(self, uri: str) -> bool:
        if self._folder or {".", ".."} & set(unquote(uri).split("/")):
            return False
        return uri == self._root or uri.startswith(f"{self._root}/")


class Confined(LocalArtifactRepository):
    """Artifacts in a local folder; every method that opens a path checks its real path first.

    3.17.2: `mlflow.store.artifact.local_artifact_repo`. The test of this module lists the methods of the base classes,
    and fails for an unknown method.
    """

    def __init__(
        self, artifact_uri: str, tracking_uri: str | None, registry_uri: str | None, root: Path
    ) -> None:
        super().__init__(artifact_uri, tracking_uri, registry_uri)
        self._root = root
        self._real(self.artifact_dir)

    def _real(self, path: str | Path) -> str:
        """Return a path with all symbolic links resolved.

        Raises:
            MlflowException: it is not below the root (403).
        """
        real = os.path.realpath(path)
        if not Path(real).is_relative_to(os.path.realpath(self._root)):
            raise _refused()
        return real

    def _check(self, artifact_path: str | None) -> None:
        self._real(Path(self.artifact_dir, os.path.normpath(artifact_path or ".")))

    def get_local_path(self, artifact_path: str) -> str:
        """Return the real path of the file that the server sends."""
        self._check(artifact_path)
        return self._real(super().get_local_path(artifact_path))

    def _download_file(self, remote_file_path: str, local_path: str) -> None:
        shutil.copy2(self.get_local_path(remote_file_path), local_path)

    def list_artifacts(self, path: str | None = None) -> list[Any]:
        """List a folder without links that point outside the root."""
        self._check(path)
        return [info for info in super().list_artifacts(path) if self._is_inside(info.path)]

    def _is_inside(self, artifact_path: str) -> bool:
        full = Path(self.artifact_dir, artifact_path)
        try:
            return not full.is_symlink() or bool(self._real(full))
        except MlflowException:
            return False

    def _is_directory(self, artifact_path: str | None) -> bool:
        self._check(artifact_path)
        return super()._is_directory(artifact_path)

    def _get_or_create_artifact_dir(self, artifact_path: str | None = None) -> str:
        self._check(artifact_path)
        return super()._get_or_create_artifact_dir(artifact_path)

    def _get_destination_artifact_path(
        self, artifact_file_name: str, artifact_path: str | None = None
    ) -> tuple[str, str]:
        self._check(str(Path(artifact_path or "", Path(artifact_file_name).name)))
        return super()._get_destination_artifact_path(artifact_file_name, artifact_path)

    def log_artifacts(self, local_dir: str, artifact_path: str | None = None) -> None:
        """Copy a folder file by file: MLflow's copy of a tree would write through links."""
        for file in sorted(path for path in Path(local_dir).rglob("*") if path.is_file()):
            folder = Path(artifact_path or "", file.parent.relative_to(local_dir))
            self.log_artifact(file, None if folder == Path() else folder.as_posix())

    def delete_artifacts(self, artifact_path: str | None = None) -> None:
        """Delete a file or folder."""
        # As in the base class, which treats the path as a URI and decodes it, so the folder is decoded twice.
        self._real(local_file_uri_to_path(str(Path(self.artifact_dir, artifact_path or ""))))
        super().delete_artifacts(artifact_path)

    def download_trace_data(self) -> dict[str, Any]:
        """Return a trace's data."""
        self._check(TRACE_DATA_FILE_NAME)
        return super().download_trace_data()
