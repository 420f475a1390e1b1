"""Copies a finished flow's params and metrics from MLflow, which remains the record, to Weights & Biases.

One W&B run per fleet, in a group per flow. The target is set by W&B's environment variables: `WANDB_API_KEY` (read by
W&B only), `WANDB_PROJECT` (default `cpb`), `WANDB_ENTITY`, `WANDB_MODE=offline`, `WANDB_DIR`.
"""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from schemas.errors import UsageError, install_extra
from tasks.storage.urls import without_credentials
from tasks.tracking.calls import search
from tasks.tracking.store import open_store
from tasks.tracking.tags import PARENT

if TYPE_CHECKING:
    from mlflow.entities import Run

SWITCH = "CPB_WANDB"
"""Environment variable: 1 enables the mirror, like `--wandb`."""
_INIT_TIMEOUT_S, _FINISH_TIMEOUT_S = 30, 120
_ONCE = "test_"  # metrics of a finished model; all others are per epoch


def is_wanted(*, asked: bool) -> bool:
    """Whether the mirror is enabled, by the option or by the environment."""
    return asked or os.environ.get(SWITCH, "").lower() in ("1", "true", "yes", "on")


def check_usable() -> None:
    """Raise `UsageError` if wandb is missing or has no key: before hours of training, not after.

    Whether W&B knows the key, only its server can say: that is found out at the end (`mirror`).
    """
    if find_spec("wandb") is None:
        raise UsageError(
            f"wandb is not installed: run {install_extra('wandb')}, or leave --wandb out",
            code="wandb",
        )
    import wandb

    session = wandb.setup(wandb.Settings(console="off", silent=True))
    try:
        if session.settings.mode == "online" and not wandb.login(prompt=False, verify=False):
            why = "it has no API key"
        else:
            return
    except wandb.Error as error:  # such as a key of the wrong length
        why = _in_a_line(error)
    finally:
        wandb.teardown()
    raise UsageError(
        f"Weights & Biases would get no copy of this run ({why}): run `wandb login`, or set WANDB_API_KEY, or "
        "WANDB_MODE=offline, or leave --wandb out",
        code="wandb",
    )


def mirror(run_id: str, root: Path) -> str:
    """Copy a flow's run to W&B; return "" or, in one sentence, why the copy is missing or incomplete.

    Args:
        run_id: of the flow's run in MLflow.
        root: the market's home, the folder of W&B's own files unless `WANDB_DIR` is set.
    """
    try:
        _copy(run_id, Path(os.environ.get("WANDB_DIR") or root))
    except Exception as error:  # noqa: BLE001 - whatever W&B raises ends no training
        return (
            f"Weights & Biases has no complete copy of this run ({_in_a_line(error)}); MLflow has all "
            "of it: check WANDB_API_KEY and the network, or set WANDB_MODE=offline"
        )
    return ""


def _in_a_line(error: Exception) -> str:
    """Return an error of W&B's without the key."""
    key = os.environ.get("WANDB_API_KEY") or "\0"
    reason = " ".join(f"{type(error).__name__}: {error}".replace(key, "…").split())
    return without_credentials(reason)[:200]


def _copy(run_id: str, folder: Path) -> None:
    import wandb

    store = open_store()
    flow = store.client.get_run(run_id)
    folder.mkdir(parents=True, exist_ok=True)
    settings = wandb.Settings(
        console="off",
        silent=True,
        disable_git=True,
        disable_code=True,
        x_disable_stats=True,
        init_timeout=_INIT_TIMEOUT_S,
        finish_timeout=_FINISH_TIMEOUT_S,
        finish_timeout_raises=True,
    )
    wandb.setup(settings)  # silent: it asks nobody at the terminal for a key
    for fleet in search(store, f"tags.`{PARENT}` = '{run_id}'"):
        members = list(search(store, f"tags.`{PARENT}` = '{fleet.info.run_id}'"))
        params = {m.info.run_name: dict(m.data.params) for m in members if m.data.params}
        config = {**flow.data.params, **fleet.data.params, **({"members": params} if params else {})}
        with wandb.init(
            project=os.environ.get("WANDB_PROJECT") or "cpb",
            dir=str(folder),
            settings=settings,
            config=config,
            # MLflow's id: a repeated copy goes on with the same W&B run.
            id=fleet.info.run_id,
            resume="allow",
            group=flow.info.run_name,
            name=fleet.info.run_name,
            reinit="finish_previous",
        ) as copy:
            # Metrics of epochs have the epoch as x; W&B would count the calls.
            copy.define_metric("*", step_metric="epoch")
            for row in _by_epoch(store.client, members):
                copy.log(row)
            copy.summary.update(fleet.data.metrics)
            for member in members:
                scores = {k: v for k, v in member.data.metrics.items() if k.startswith(_ONCE)}
                copy.summary.update({f"{member.info.run_name}/{k}": v for k, v in scores.items()})
    wandb.teardown()


def _by_epoch(client: Any, members: "list[Run]") -> list[dict[str, float]]:
    """Return a row per epoch: `MEMBER/val_loss` and so on."""
    rows: dict[int, dict[str, float]] = {}
    for member in members:
        for metric in (m for m in member.data.metrics if not m.startswith(_ONCE)):
            for point in client.get_metric_history(member.info.run_id, metric):
                row = rows.setdefault(point.step, {"epoch": point.step})
                row[f"{member.info.run_name}/{metric}"] = point.value
    return [rows[epoch] for epoch in sorted(rows)]
