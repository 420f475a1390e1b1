"""Step 6, publish: all champions as one Hub commit, or as the same tree in a folder."""

from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from tasks.hub.publish import publish as publish_tree
from tasks.hub.tree import build_tree
from tasks.tracking.registry import champions, of_source


@task(name="publish", cache_policy=NO_CACHE, persist_result=False)
def publish(home: Path, repo: str | None = None, source: str | None = None) -> str:
    """Write the tree of all champions to `home/hub`, and to the Hub where `repo` is named; say where it is.

    Models of simulated and of real candles are never published together.
    """
    tree = build_tree(of_source(champions(), source), home / "hub", repo)
    return str(publish_tree(tree, repo)) if repo else str(tree)
