"""Work of `requests` that comes to the same for all files of a host, done once a host instead of once a request.

Left alone, preparing a request, choosing its proxy and its pool, and making its answer's cookie jar take 0.15 ms of
CPU, over loopback more than half of what the exchange itself takes. Only hooks that `requests` documents for subclasses
are used.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from requests import PreparedRequest, Request, Response
from requests.auth import AuthBase
from urllib3 import HTTPConnectionPool

from tasks.market.deadline import DeadlineAdapter

_PLAIN = re.compile(r"(https?://[^/?#@\\\s]+)((?:/[\w-][\w.-]*)+(?:\?[\w.=&-]*)?)", re.ASCII)
"""Origin and target of a URL that holds nothing to quote, to resolve, or to take for credentials."""


class HostAdapter(DeadlineAdapter):
    """A `DeadlineAdapter` for many requests to few origins, at most as many as `pool_connections`.

    urllib3 would close the pools of further ones, which are kept here. Cookies of answers are not read.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        self._direct: dict[tuple, HTTPConnectionPool] = {}
        super().__init__(*args, **options)

    def get_connection_with_tls_context(
        self, request: PreparedRequest, verify: Any, proxies: Any = None, cert: Any = None
    ) -> HTTPConnectionPool:
        """Return the pool that a request takes its connection from."""
        if proxies:
            return super().get_connection_with_tls_context(request, verify, proxies, cert)
        key = (origin_of(str(request.url)), verify, cert)
        if (pool := self._direct.get(key)) is None:
            pool = super().get_connection_with_tls_context(request, verify, proxies, cert)
            self._direct[key] = pool
        return pool

    def request_url(self, request: PreparedRequest, proxies: Any) -> str:
        """Return the target that the request's first line names."""
        return super().request_url(request, proxies) if proxies else request.path_url

    def build_response(self, req: PreparedRequest, resp: Any) -> Response:
        """Return an answer with status, headers and `raw`."""
        response = Response()
        response.status_code, response.headers, response.raw = resp.status, resp.headers, resp
        response.url, response.request = str(req.url), req
        return response

    def close(self) -> None:
        """Close the connections; a later request opens new ones."""
        self._direct.clear()
        super().close()


class Requests:
    """Requests with the same headers; what a host's address and credentials come to is worked out once."""

    def __init__(self, headers: Mapping[str, str], auth_for: Callable[[str], AuthBase | None]) -> None:
        self._headers, self._auth_for = headers, auth_for
        self._of_roots: dict[tuple[str, str], PreparedRequest] = {}

    def prepared(self, method: str, url: str) -> PreparedRequest:
        """Return a request as `requests` prepares it; raises `RequestException` for what is no URL."""
        plain = _PLAIN.fullmatch(url)
        if plain is None:
            return self._prepare(method, url)
        origin, target = plain.groups()
        if (root := self._of_roots.get((method, origin))) is None:
            root = self._of_roots[method, origin] = self._prepare(method, f"{origin}/")
        request = root.copy()
        request.url = f"{str(root.url).removesuffix('/')}{target}"
        return request

    def _prepare(self, method: str, url: str) -> PreparedRequest:
        return Request(method, url, headers=self._headers, auth=self._auth_for(url)).prepare()


def origin_of(url: str) -> str:
    """Return scheme, host and port of a prepared URL, which always has a path."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}"
