"""Reads every stored file of one or all markets by its normal reader, and repairs nothing.

Not a step of the DAG: `cpb verify` runs it separately. Each kind yields its files with a function that returns the
fault, and with the command that makes or fetches the file again. If damage or an error prevents checking one file or
one kind, the others are still checked.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from schemas.errors import CpbError
from schemas.handover import Damage
from tasks.forecasting.chain import ANY_ERROR
from tasks.storage.packaged import packaged_models
from tasks.tracking.experiment import NO_STORE
from tasks.verify.checks import Check, damage_at, unexpected
from tasks.verify.computed import candles, features, fleets
from tasks.verify.home import (
    home_version,
    mlflow_database,
    registry_copy,
    results,
    store_record,
    table_readings,
    unseen,
)
from tasks.verify.models import champion_files, packaged_behind, packaged_differences, published
from tasks.verify.record import forecasts, ledger_records, published_record


@dataclass
class Verification:
    """The findings: number of the markets' files checked, the damage, a sentence for each kind that was not checked.

    `unseen`: what is stored without a digest, so that damage of it would not be found. `behind`: packaged models that
    are no longer the champions, which is no damage.
    """

    checked: int = 0
    damaged: list[Damage] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)
    behind: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        """Whether everything was checked and no file is damaged."""
        return not self.damaged and not self.unchecked


def verify_all(
    home: Path, markets: Sequence[str], seen: Callable[[int], None] = lambda _checked: None
) -> Verification:
    """Check all files of the markets; `seen` is called with the number of files checked so far."""
    result = Verification(unseen=unseen())
    errors: dict[tuple[str, str], list[str]] = {}  # the markets of each kind and sentence

    def check_all(kind: str, market: str, checks: Iterable[Check]) -> None:
        try:
            for check in checks:
                damage = damage_at(home, *check)
                if market:
                    result.checked += 1
                    seen(result.checked)
                # The futures' candles share the spot manifest: it is reported once.
                if damage and damage.path not in {reported.path for reported in result.damaged}:
                    result.damaged.append(damage)
        except ANY_ERROR as error:  # an error of one kind must not hide damage of another
            if getattr(error, "code", "") != NO_STORE or packaged_models(home, market):
                errors.setdefault((kind, _sentence(error)), []).append(market)

    for kind, shared in SHARED_KINDS.items():
        check_all(kind, "", shared(home))
    for market in markets:
        for kind, checks in KINDS.items():
            check_all(kind, market, checks(home, market))
        result.behind += packaged_behind(home, market)
    for (kind, text), unchecked in errors.items():
        of = f" of market {', '.join(unchecked)}" if any(unchecked) else ""
        result.unchecked.append(f"the {kind}{of} could not be checked: {text}; then run `cpb verify` again")
    return result


def _sentence(error: BaseException) -> str:
    """Return the reason why a kind could not be checked."""
    if isinstance(error, CpbError | OSError):
        return str(error)
    return (
        f"{unexpected(error)}; this is an error of cpb, which damage may have caused: put the files of that kind back "
        "from a backup, and report this sentence"
    )


SHARED_KINDS: dict[str, Callable[[Path], Iterator[Check]]] = {
    "version of the home": home_version,
    "record of the home's store": store_record,
    "copy of the registry": registry_copy,
    "MLflow store": mlflow_database,
}
"""The kinds of files that all markets share."""

KINDS: dict[str, Callable[..., Iterator[Check]]] = {
    "candles": candles,
    "readings of tables": table_readings,
    "features": features,
    "champions": champion_files,
    "packaged models": packaged_differences,
    "fleets": fleets,
    "published record": published_record,
    "forecasts": forecasts,
    "records of the ledger": ledger_records,
    "results": results,
    "published models": published,
}
"""The kinds of files, in the order of checking."""
