"""A run made champion without a gate's decision."""

from tasks.tracking.champions import succeed
from tasks.tracking.registry import register
from tasks.tracking.store import open_store
from tasks.tracking.tags import REASON


def register_champion(series, run_id, *, reason="", tags=None, store=None, **known):
    """Return the version; the champion before it is `previous`. Other arguments as `register` has them."""
    store = store or open_store()
    version = register(store, series, run_id, tags={**(tags or {}), REASON: reason}, **known)
    succeed(store, version)
    return str(version.version)
