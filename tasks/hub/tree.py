"""The folder that is published: a model folder per champion, `SYMBOL/IV/`, and the model card."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from schemas.errors import CpbError
from tasks.storage.files import new_folder
from tasks.hub.card import model_card
from tasks.tracking.registry import Champion

NEEDED = ("model.safetensors", "config.json")
EXTRA = ("metrics.json", "forecast.png", "loss.png")


def build_tree(champions: Sequence[Champion], folder: Path, repo: str | None = None) -> Path:
    """Write the tree to publish into `folder`, whole or not at all, and return it.

    The same champions give the same bytes, so publishing twice finds nothing to send. `repo` (USER/NAME) is
    what the card's example downloads.

    Raises:
        CpbError: there are no champions, or one's files are missing.
    """
    if not champions:
        raise CpbError("there is no champion to publish yet; train first, as in `cpb train-all`")
    ordered = sorted(champions, key=lambda c: (c.timeframe, c.symbol))
    with new_folder(folder) as draft:
        for champion in ordered:
            _copy_model(champion, draft / champion.symbol / champion.timeframe)
        (draft / "README.md").write_text(model_card(ordered, repo or "USER/NAME"), encoding="utf-8")
    return folder


def _copy_model(champion: Champion, target: Path) -> None:
    target.mkdir(parents=True)
    for name in NEEDED:
        if not (champion.folder / name).is_file():
            raise CpbError(
                f"champion {champion.model_version} has no {name} in {champion.folder}; promote again"
            )
    for name in (*NEEDED, *EXTRA):
        if (champion.folder / name).is_file():
            shutil.copyfile(champion.folder / name, target / name)
    _hide_paths(target / "config.json")


def _hide_paths(config: Path) -> None:
    """Say that a model continued another one, but not in which folder of this machine that lies."""
    values = json.loads(config.read_text(encoding="utf-8"))
    if values.get("warm_start"):
        values["warm_start"] = "champion"
        config.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
