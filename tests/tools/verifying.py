"""The check of one kind of stored files, as `cpb verify` runs it, for tests of that kind."""

from tasks.verify.checks import damage_at
from tasks.verify.verification import KINDS


def of_kind(kind):
    """Return a function that checks one kind in a home, and returns what is damaged."""

    def check(home, market="spot", seen=lambda _path: None, **more):
        damages = []
        for path, fault, command in KINDS[kind](home, market, **more):
            damage = damage_at(home, path, fault, command)
            seen(path)
            damages += [damage] if damage else []
        return damages

    return check


verify_market = of_kind("candles")
verify_features = of_kind("features")
verify_champions = of_kind("champions")
verify_fleets = of_kind("fleets")
verify_forecasts = of_kind("forecasts")
verify_ledger = of_kind("records of the ledger")
verify_published = of_kind("published models")
