"""Step 7, publish: all champions of a market as a single Hub commit, or as the same tree in a folder."""

from pathlib import Path

from schemas.handover import Publication
from schemas.identity import Market
from tasks.hub.publish import publish as publish_tree
from tasks.hub.tree import package
from tasks.running.step import step


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
    tree, failures = package(home, market, repo)
    place = publish_tree(tree, repo) if repo else tree
    return Publication(place=str(place), failures=tuple(failures))
