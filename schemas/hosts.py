"""The names that a server of ours answers to.

A page of another origin can give its own name the address of this machine (DNS rebinding); the browser would then
let it read the answers. Such a request still carries the foreign name as its Host, and is refused by it.
"""

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass

from schemas.errors import UsageError

_HOST = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[^\s:/@\[\]]+)(:[0-9]{1,5})?")


@dataclass(frozen=True)
class Hosts:
    """Names besides those that are always answered to: loopback, and the address by which a request arrived.

    Only names can be rebound. Others, such as a proxy's, must be allowed.
    """

    names: frozenset[str]

    @classmethod
    def of(cls, allowed: Iterable[str] = ()) -> "Hosts":
        """Return the names that may be allowed; raises `UsageError` for what is none."""
        return cls(frozenset({"localhost", *map(_checked, allowed)}))

    def answer_to(self, name: str | None, server: tuple[str, int | None] | None) -> bool:
        """Whether a request for a host's name (`host_name`) is answered that arrived at `server` (ASGI's)."""
        if name is None:
            return False
        address = _address(name)
        if address is None:
            return name in self.names
        arrived_at = _address(server[0]) if server else None
        return address.is_loopback or address == arrived_at or name in self.names


def host_name(host: str) -> str | None:
    """Return the name or address in a Host header: in lower case, no port, brackets or final dot; None if malformed."""
    found = _HOST.fullmatch(host.strip().lower())
    return found["name"].strip("[]").removesuffix(".") if found else None


def _checked(host: str) -> str:
    name = host_name(host)
    if not name or "*" in name or "," in name:
        raise UsageError(
            f"allowed_hosts {host!r} is not a host: name hosts without wildcards, as in forecasts.example.com,10.0.0.5",
            code="host", field="allowed_hosts",
        )  # fmt: skip
    return name


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        found = ipaddress.ip_address(name)
    except ValueError:
        return None
    # A listener for both protocols sees 192.168.1.5 as ::ffff:192.168.1.5.
    return getattr(found, "ipv4_mapped", None) or found
