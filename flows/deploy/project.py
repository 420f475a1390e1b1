"""Where a deployment lives: the project's folder, the state folder, the password, the environment of its processes."""

import os
from pathlib import Path

from flows.ops.password_file import PasswordFile
from schemas.errors import CpbError

ROOT = Path(__file__).resolve().parents[2]
"""The folder that holds this code: its prefect.yaml is deployed, whatever folder the command is typed in."""

QUIET = {"DO_NOT_TRACK": "1", "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
_SQLITE = "sqlite:///"


def api_of(port: int) -> str:
    """Return the address of the API on a port of this machine."""
    return f"http://127.0.0.1:{port}/api"


def project_folder() -> Path:
    """Return the project's folder.

    Raises:
        CpbError: this installation of cpb has no prefect.yaml.
    """
    if not (ROOT / "prefect.yaml").is_file():
        raise CpbError(
            f"there is no prefect.yaml in {ROOT}: deployments need the project's folder; install cpb from it with "
            "`pip install -e FOLDER`",
            code="no-project",
        )
    return ROOT


def state_folder() -> Path:
    """Return the folder of process records and logs: `CPB_DEPLOY_STATE`, or `.cpb` in the project."""
    return Path(os.environ.get("CPB_DEPLOY_STATE") or ROOT / ".cpb").absolute()


def prefect_home() -> Path:
    """Return Prefect's folder: `PREFECT_HOME`, or `~/.prefect`."""
    return Path(os.environ.get("PREFECT_HOME") or "~/.prefect").expanduser().absolute()


def password_file(home: Path | None = None) -> PasswordFile:
    """Return where the API's password lies: in Prefect's folder. Whoever holds it can run commands as this user."""
    return PasswordFile(
        (home or prefect_home()) / "cpb-api-auth",
        missing="no server of `cpb deploy` has run with this PREFECT_HOME, or the file was deleted; run "
        "`cpb deploy down`, then `cpb deploy up`",
        remedy="run `cpb deploy down`, delete it, and run `cpb deploy up`, which makes a new one",
    )


def data_home() -> Path:
    """Return the store that deployed flows use: `CPB_HOME`, or `data` in the project."""
    return Path(os.environ.get("CPB_HOME") or ROOT / "data").absolute()


def settings(port: int, home: Path) -> dict[str, str]:
    """Return the settings of Prefect that each process of a deployment has; the password is no part of them."""
    return QUIET | {"PREFECT_HOME": str(home), "PREFECT_API_URL": api_of(port)}


def environment(port: int, home: Path) -> dict[str, str]:
    """Return the environment of server, worker and `prefect deploy`, which all run in the project's folder.

    Paths that the user gave relative to another folder become absolute. The password is no part of it: each
    process reads it from its file.
    """
    env = os.environ | settings(port, home) | {"PWD": str(ROOT)}
    for name in ("CPB_HOME", "CPB_DEPLOY_STATE"):
        if env.get(name):
            env[name] = str(Path(env[name]).absolute())
    uri = env.get("MLFLOW_TRACKING_URI", "")
    if uri.startswith(_SQLITE) and not uri.startswith(f"{_SQLITE}/"):
        env["MLFLOW_TRACKING_URI"] = f"{_SQLITE}{Path(uri.removeprefix(_SQLITE)).absolute()}"
    return env
