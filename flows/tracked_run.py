"""The flow's run in MLflow: found again by a digest of what was asked, and never left open."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from flows.summary import Say
from schemas.handover import SeriesRecord
from schemas.run import FILTERS, RunSpec
from tasks.storage.digests import value_digest
from tasks.storage.urls import public_url
from tasks.tracking.database import DOWN
from tasks.tracking.records import OpenRun
from tasks.tracking.run_names import run_name, scope_tags
from tasks.tracking.runs import FAILED, finish, kill, start_parent
from tasks.tracking.tags import AS_OF, COMMAND, LEFT_OUT, NEWEST, REASON
from tasks.tracking.wandb_mirror import is_wanted, mirror
from tasks.training.plan import training_code


def start_run(
    spec: RunSpec, records: Sequence[SeriesRecord], name: str, left_out: str | None = None
) -> OpenRun:
    """Open the run of a specification on the data it met: the same command on the same data is the same run.

    Args:
        name: the command's.
        left_out: what a night does not train, and why.
    """
    tags = _tags(spec) | scope_tags(spec, records) | {COMMAND: name, LEFT_OUT: left_out}
    return start_parent(_run_key(spec, records), _params(spec), tags, run_name(name, spec, records))


@contextmanager
def run_of(run_id: str) -> Iterator[None]:
    """Mark the flow's run as failed, with the reason, where an error ends the block, as killed where an interrupt does.

    Where the store itself is away the run stays open, and is marked as killed by whatever of cpb next writes there.

    Interrupts (Ctrl-C, the signal by which Prefect cancels a run) are no `Exception`.
    """
    try:
        yield
    except Exception as error:
        # else the store would be waited for once more, to tell it this
        if getattr(error, "code", "") != DOWN:
            finish(run_id, FAILED, {REASON: str(error) or type(error).__name__})
        raise
    except BaseException as interrupt:
        kill(run_id, f"interrupted ({type(interrupt).__name__})")
        raise


def mirror_to_wandb(spec: RunSpec, run_id: str, say: Say) -> None:
    """Copy a finished run to Weights & Biases where that was asked for; what goes wrong there is said, and no more."""
    if is_wanted(spec.wandb) and (problem := mirror(run_id, spec.scope.root)):
        say(f"cpb: {problem}")


def _run_key(spec: RunSpec, records: Sequence[SeriesRecord]) -> str:
    """Digest of what was asked and of the data it met: the same command on the same data is the same run."""
    aside = {
        "coins",
        "timeframes",
        "source",
        "since",
        "as_of",
        "train_timeout_s",
        "tail",
        "prune",
        "wandb",
        *FILTERS,
        "engine",
    }
    asked = spec.model_dump(mode="json", exclude=aside) | spec.scope.model_dump(
        mode="json", exclude={"home", "source"}
    )
    data = [(r.series.name, r.digest) for r in records]
    return value_digest([asked, data, training_code()])[:16]


def _params(spec: RunSpec) -> dict[str, Any]:
    source = public_url(spec.source) if spec.source else None
    asked = spec.model_dump(mode="json") | {"source": source, "architectures": list(spec.names)}
    return asked | ({"pairs": ",".join(spec.pairs)} if spec.pairs else {})


def _tags(spec: RunSpec) -> dict[str, str]:
    as_of = spec.scope.as_of
    return {"preset": spec.preset, "market": spec.market, AS_OF: as_of.isoformat() if as_of else NEWEST}
