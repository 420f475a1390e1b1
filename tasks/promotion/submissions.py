"""The register of the recipes that were named for a backtest against the champions' recipe.

`HOME/ledger/gate/interval=1h/003~5.json` (number, recipes and search trials submitted) is what the correction for many
recipes counts: a record is never changed or removed, whether its recipes pass or lose. The name alone says how many
count, so a record that was lost to damage counts, too.
"""

import re
from datetime import datetime
from pathlib import Path

from schemas.base import Record
from schemas.identity import Market, tree_of
from tasks.storage.records import find_record, value_digest, write_record

_NAME = re.compile(r"(?P<number>\d{3,})~(?P<count>\d+)\.json")


class Submission(Record):
    """Recipes named for a backtest against the champions' recipe, before it starts.

    `trials`: search trials on the span of which each recipe is the best, 1 for none. `first`, `last`: start and end of
    the test spans. `series`: digests of the candles.
    """

    market: Market
    timeframe: str
    incumbent: str
    recipes: tuple[str, ...]
    trials: int
    folds: int
    first: datetime
    last: datetime
    series: tuple[str, ...]
    named_at: datetime

    @property
    def count(self) -> int:
        """Number of recipes and search trials that count for the correction."""
        return self.trials * len(self.recipes)

    @property
    def digest(self) -> str:
        """Digest of what was named, without the time."""
        return value_digest(self.model_dump(mode="json", exclude={"named_at"}))[:16]


def enter(home: Path, submission: Submission) -> Submission:
    """Write a submission into the register, under the promotion lock; return an earlier one of the same backtest.

    A repeated backtest is thus counted once, and a new one gets the next number.
    """
    market, timeframe = submission.market, submission.timeframe
    earlier = {before.digest: before for before in submissions(home, market, timeframe)}
    if submission.digest in earlier:
        return earlier[submission.digest]
    # From the names of the files, not from the records: a damaged one keeps its number.
    numbers = (int(path.name.partition("~")[0]) for path in register_files(home, market, timeframe))
    path = _folder(home, market, timeframe) / f"{1 + max(numbers, default=0):03d}~{submission.count}.json"
    write_record(path, submission)
    return submission


def submissions(home: Path, market: str, timeframe: str) -> list[Submission]:
    """Return the submissions of a timeframe, oldest first; a damaged file is left out."""
    files = register_files(home, market, timeframe)
    return [record for path in files if (record := find_record(path, Submission))]


def counted_before(home: Path, submission: Submission) -> int:
    """Return the number of recipes and trials named earlier for spans that overlap a submission's.

    A submission whose record was lost to damage counts as overlapping.
    """
    count = 0
    for earlier in submissions(home, submission.market, submission.timeframe):
        # Records are read in the order of their numbers, so all before it were named earlier.
        if earlier.digest == submission.digest:
            break
        # Spans that touch in a single day overlap: the same luck may have picked both.
        count += earlier.count if earlier.first < submission.last and submission.first < earlier.last else 0
    for path in register_files(home, submission.market, submission.timeframe):
        name = _NAME.fullmatch(path.name)
        if name and not find_record(path, Submission):
            count += int(name["count"])
    return count


def register_files(home: Path, market: str, timeframe: str = "*") -> list[Path]:
    """Return the files of the register of a timeframe, or of all, oldest first; other files are ignored."""
    paths = _folder(home, market, "").parent.glob(f"interval={timeframe}/*.json")
    # Sorted by number, not as text: 1000 follows 999.
    named = ((path, _NAME.fullmatch(path.name)) for path in paths)
    return [path for _, path in sorted((int(name["number"]), path) for path, name in named if name)]


def _folder(home: Path, market: str, timeframe: str) -> Path:
    return tree_of(home, "ledger", market) / "gate" / f"interval={timeframe}"
