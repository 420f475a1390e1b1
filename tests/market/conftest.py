"""A market that is ingested from a server whose answers a test may replace."""

from types import SimpleNamespace

import pytest

from tasks.market import simulator
from tasks.market.ingest import update_store
from tests.tools.folder_mirror import FolderMirror
from tests.tools.market_tools import FAST, build, scope


@pytest.fixture
def market(tmp_path):
    """Ingests three months of BTC from a server whose answers `hook` may replace."""
    root = build(tmp_path / "mirror", symbols=("BTCUSDT",))

    def served(hook=None, lists=True, **options):
        with simulator.serve(FolderMirror(root), hook, lists=lists) as url:
            scoped = scope(tmp_path / "home", url, "BTC", since="2024-01", **options)
            return update_store(scoped, limits=FAST)

    return SimpleNamespace(root=root, home=tmp_path / "home", served=served, folder=FolderMirror(root))
