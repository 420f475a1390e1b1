"""Step 7, publish: all champions of a market as one Hub commit, or as the same tree in a folder."""

from pathlib import Path

from schemas.identity import Market, tree_of
from tasks.hub.publish import publish as publish_tree
from tasks.hub.tree import build_tree
from tasks.step import step
from tasks.tracking.registry import champions


@step("publish")
def publish(home: Path, market: Market, repo: str | None = None) -> str:
    """Write the tree of a market's champions to `hub` (`hub-um`, `sim/hub`), and to the Hub where `repo` is named.

    Returns where it is. Models of several markets, or of simulated and real candles, are never published together.

    Raises:
        CpbError: no champion, a damaged one, or the Hub refuses.
    """
    tree = build_tree(champions(market=market), tree_of(home, "hub", market), repo)
    return str(publish_tree(tree, repo)) if repo else str(tree)
