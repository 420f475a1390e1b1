"""Step 7, publish: all champions of a market as a single Hub commit, or as the same tree in a folder."""

from pathlib import Path

from schemas.errors import DamagedError
from schemas.handover import Failure, Publication
from schemas.identity import Market, tree_of
from tasks.hub.ledger import check_head
from tasks.hub.publish import publish as publish_tree
from tasks.hub.tree import build_tree
from tasks.running.step import step
from tasks.tracking.registry import champions


@step("publish")
def publish(home: Path, market: Market, repo: str | None = None) -> Publication:
    """Write the tree of a market's champions to `hub` (`hub-um`, `sim/hub`), and to the Hub if `repo` is given.

    A damaged champion is left out and reported as a failure. Models of several markets, or of simulated and real
    candles, are never published together.

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
    tree = build_tree(intact or found, tree_of(home, "hub", market), repo, home)
    if not repo:
        return Publication(place=str(tree), failures=tuple(failures))
    place = str(publish_tree(tree, repo, check_head=lambda head: check_head(home, market, repo, head)))
    return Publication(place=place, failures=tuple(failures))
