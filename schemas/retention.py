"""What cpb deletes of its own accord: what is kept, how much or how long, and why. All limits are here.

Whoever deletes reads its limit here; docs/operations.md has `RULES` as a table. A file that a newer one replaces (a
month of candles, provisional candles, the packaged folder) is no matter of retention. Forecasts, scores and chain, the
gate's register and switches, studies of `cpb tune`, and what is in a Hub repository are never deleted: they cannot be
made again, or others rely on them.
"""

from typing import NamedTuple

NIGHTS = 14
"""Nights of a market (UTC days on which a run of it finished) whose runs and model versions stay in MLflow."""

EARLIER_DECISIONS = NIGHTS
"""Earlier decisions kept per series, as tags of its registered model: listing champions reads them all."""

SHARDS_PER_KIND = 3
"""Shards kept per kind (what makes the models, and the members): the most recently used."""

SHARD_UNUSED_DAYS = 90
"""Days without use after which all shards of a kind go: the kinds change with every newly listed coin."""

FEATURE_FILES = 4
"""Feature files kept per series: a run with a different `as_of` may still be reading an older file."""

ARCHIVES = 2
"""Archives of one store: such a folder may hand a file on (upload it) later than it accepts it."""

DRAFT_S = 24 * 3600.0
"""Age at which the draft of a folder or an archive is that of a killed process: no writing takes a day."""

LOG_BYTES = 10_000_000
"""Size at which a log file is rotated; one earlier file is kept beside it."""


class Rule(NamedTuple):
    """What is kept of something, and why no more and no less; a row of the table in docs/operations.md."""

    what: str
    kept: str
    why: str


RULES = (
    Rule(
        "runs and model versions in MLflow, with the files that cpb logged (`cpb prune`, `--prune`)",
        f"the last {NIGHTS} nights of each market; before them what has an alias or the tag `keep`",
        "a night over the exchange leaves thousands of runs; two weeks are enough to look back and to go back",
    ),
    Rule(
        "champions fetched from a server (`champions/`), with `cpb prune`",
        "those of versions that exist",
        "fetched again when asked for",
    ),
    Rule(
        "decisions on a series, as tags in MLflow",
        f"the newest and {EARLIER_DECISIONS} before it; each champion's own stays with its version",
        "listing champions reads them all",
    ),
    Rule(
        "trained shards (`fleets/`)",
        f"the last {SHARDS_PER_KIND} of each kind, if used within {SHARD_UNUSED_DAYS} days",
        "a repeated command finds them finished; kinds change with every newly listed coin",
    ),
    Rule(
        "feature files (`features/`)",
        f"the last {FEATURE_FILES} of each series",
        "computed again in a second; another run may be reading an older one",
    ),
    Rule(
        "archives in the folder of `CPB_KEEP`",
        f"the last {ARCHIVES} of each store",
        "such a folder may upload a file later than it accepts it",
    ),
    Rule(
        "drafts of folders and archives that a killed process left",
        f"{DRAFT_S / 3600:.0f} hours",
        "no writing takes that long",
    ),
    Rule(
        "logs of servers",
        f"{LOG_BYTES / 1e6:.0f} MB and one earlier file of the same size",
        "strangers can make a server write lines",
    ),
)
