"""The check of one kind of stored files, as `cpb verify` runs it, for tests of that kind."""

from tasks.storage.checked_files import Asked, damages
from tasks.verify import KINDS


def of_kind(kind, **known):
    """Return a function that checks one kind in a home, and returns what is damaged.

    Args:
        known: further arguments of the kind's manifest.
    """

    def check(
        home, market="spot", *, repair=False, source=None, seen=lambda _path: None, before=None, **more
    ):
        asked = Asked(home, market, repair, source)
        found = list(damages(asked, lambda one: KINDS[kind](one, **known, **more), seen))
        for rows in asked.rows_before.values() if before else ():
            before(rows)
        return found

    return check


verify_market = of_kind("candles")
verify_features = of_kind("features")
verify_champions = of_kind("champions")
verify_fleets = of_kind("fleets")
verify_forecasts = of_kind("forecasts")
verify_ledger = of_kind("records of the ledger")
verify_published = of_kind("published models")
