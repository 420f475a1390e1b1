"""Step 6, publish: all champions as one Hub commit, or as the same tree in a folder."""

from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from tasks.hub.publish import publish as publish_tree
from tasks.hub.tree import build_tree
from tasks.tracking.registry import champions


@task(name="publish", cache_policy=NO_CACHE, persist_result=False)
def publish(home: Path, repo: str | None = None, token: str | None = None) -> str:
    """Write the tree of all champions to `home/hub`, and to the Hub where `repo` is named; say where it is."""
    tree = build_tree(champions(), home / "hub", repo)
    return str(publish_tree(tree, repo, token)) if repo else str(tree)
