"""Where a machine keeps what cpb stores: `CPB_HOME`, and the MLflow store beside it."""

import os
from pathlib import Path

_CODE = Path(__file__).resolve().parents[1]


def default_folder(in_clone: Path = Path()) -> Path:
    """Return the folder in which `data` lies by default, with `mlruns` beside it.

    It is `in_clone` for cpb that runs from a clone, else `cpb` in `XDG_DATA_HOME` (`~/.local/share`): a command
    installed for a user runs in any folder, and must find there what it stored from another.
    """
    # installed from a wheel, the code lies in site-packages, without it
    if (_CODE / "pyproject.toml").is_file():
        return in_clone
    return Path(os.environ.get("XDG_DATA_HOME") or "~/.local/share").expanduser() / "cpb"


def home_folder() -> Path:
    """Return the store's folder: `CPB_HOME`, or `data` in `default_folder`."""
    return Path(os.environ.get("CPB_HOME") or default_folder() / "data")


def new_store_folder(in_clone: Path = Path()) -> Path:
    """Return the folder of an MLflow store that is yet to be made: `HOME/mlruns` where `CPB_HOME` is set, else `mlruns`
    beside `data`.

    Args:
        in_clone: as in `default_folder`.
    """
    return (home_folder() if os.environ.get("CPB_HOME") else default_folder(in_clone)) / "mlruns"
