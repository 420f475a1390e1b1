"""Step 7, publish: all champions of a market as a single Hub commit, or as the same tree in a folder."""

from pathlib import Path

from schemas.errors import DamagedError
from schemas.handover import Failure, Publication
from schemas.identity import Market, tree_of
from tasks.hub.publish import publish as publish_tree
from tasks.hub.tree import build_tree
from tasks.running.step import step
from tasks.tracking.registry import champions


@step("publish")
def publish(home: Path, market: Market, repo: str | None = None) -> Publication:
    """Write the tree of a market's champions to `hub` (`hub-um`, `sim/hub`), and with `repo` to the Hub.

    Both have the record of the market's forecasts and scores, as stored at that moment.

    A damaged champion or month is left out and reported as a failure. Models of several markets, or of simulated and
    real candles, are never published together.

    Raises:
        CpbError: no champion can be published, or the Hub refuses; (code `other-record`) the published record belongs
            to another chain than the stored record.
    """
    intact, failures = [], []
    for champion in (found := champions(market=market)):
        try:
            champion.check()
            intact.append(champion)
        except DamagedError as error:
            failures.append(Failure.of(champion.series, "publish", error))
    # If none is intact, the tree's own error names the first champion.
    tree = build_tree(intact or found, tree_of(home, "hub", market), repo, home, failures.append)
    place = publish_tree(tree, repo) if repo else tree
    return Publication(place=str(place), failures=tuple(failures))
