"""The flow's run in MLflow: found again by a digest of its inputs, and never left open."""

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
    """Open the run of a specification on its data: the same command on the same data continues the same run.

    Args:
        name: name of the command.
        left_out: what a nightly run does not train, and why.
    """
    tags = _tags(spec) | scope_tags(spec, records) | {COMMAND: name, LEFT_OUT: left_out}
    return start_parent(_run_key(spec, records), _params(spec), tags, run_name(name, spec, records))


@contextmanager
def run_of(run_id: str) -> Iterator[None]:
    """Mark the flow's run as failed with the reason if an error ends the block, as killed if an interrupt does.

    If the store itself is unavailable, the run stays open; the next cpb process that writes to the store marks it as
    killed. Interrupts (Ctrl-C, the signal with which Prefect cancels a run) are not subclasses of `Exception`.
    """
    try:
        yield
    except Exception as error:
        # otherwise this would wait for the unavailable store again
        if getattr(error, "code", "") != DOWN:
            finish(run_id, FAILED, {REASON: str(error) or type(error).__name__})
        raise
    except BaseException as interrupt:
        kill(run_id, f"interrupted ({type(interrupt).__name__})")
        raise


def mirror_to_wandb(spec: RunSpec, run_id: str, say: Say) -> None:
    """Copy a finished run to Weights & Biases if requested; errors are only printed."""
    if is_wanted(spec.wandb) and (problem := mirror(run_id, spec.scope.root)):
        say(f"cpb: {problem}")


def _run_key(spec: RunSpec, records: Sequence[SeriesRecord]) -> str:
    """Return a digest of the options and the data, so that the same command on the same data is the same run."""
    aside = {
        "coins",
        "timeframes",
        "source",
        "since",
        "as_of",
        "train_timeout_s",
        "tail",
        "offline",
        "prune",
        "wandb",
        *FILTERS,
        "engine",
    }
    asked = spec.model_dump(mode="json", exclude=aside) | spec.scope.model_dump(
        mode="json", exclude={"home", "source", "offline"}
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
