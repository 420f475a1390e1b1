"""Which model stands for a series, an architecture and a recipe: one rule for the board, its figures and the lists."""

from collections.abc import Hashable, Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from mlflow.entities import Run

Key = TypeVar("Key", bound=Hashable)
Model = TypeVar("Model")
Age = tuple[str, str]
"""Until when a model's candles reach, then when its run began: ISO 8601 in UTC, so that texts sort as times do."""


def newest_of(models: Iterable[tuple[Key, Age, Model]]) -> dict[Key, Model]:
    """Return for each key the model that has seen the newest candles; of several such, the one trained last."""
    found: dict[Key, tuple[Age, Model]] = {}
    for key, age, model in models:
        if key not in found or age > found[key][0]:
            found[key] = age, model
    return {key: model for key, (_, model) in found.items()}


def age_of(run: "Run") -> Age:
    """Return the age of a run's models: no candle that closes after its `as_of`, else after its start, was seen."""
    started = datetime.fromtimestamp(run.info.start_time / 1000, UTC)
    return _text(_until(run.data.tags.get("as_of", ""), started)), _text(started)


def recipe_of_run(params: Mapping[str, str], *tags: Mapping[str, str]) -> str:
    """Return the preset of a run's models, with the digest of what was changed in it where the run's params say so."""
    return params.get("recipe") or next((found["preset"] for found in tags if found.get("preset")), "")


def _until(as_of: str, started: datetime) -> datetime:
    try:
        found = datetime.fromisoformat(as_of)
    except ValueError:  # "newest", or not said
        return started
    return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)


def _text(at: datetime) -> str:
    return at.isoformat(timespec="seconds")
