"""URLs for display and storage (without user name, password, token or signature), and of local files."""

import re
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

_SECRET = re.compile(
    r"pass|pwd|token|secret|signature|credential|api_?key|access_?key|auth|^sig$", re.IGNORECASE
)
_NO_PORT = re.compile(r":(?!\d+$)(?![^\[]*\])")
"""A colon not followed by a port, outside IPv6 brackets: a `/` or `?` in a password ends the host part early."""
_URL = re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s'\"<>]+", re.IGNORECASE)


def public_url(url: str) -> str:
    """Return a URL (or any text, unchanged) without credentials: user info is cut, secret parameters become `***`.

    A `/`, `?` or `#` in a password ends the host part early. If the rest contains the `@` that may end the password,
    the URL is hidden entirely if it has a user, or a number that may be a port or the start of a password.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    address, query_mark, query = rest.partition("?")
    host, slash, path = address.partition("/")
    query, hash_mark, fragment = query.partition("#")
    if any(_SECRET.search(name) for name, _ in parse_qsl(query, keep_blank_values=True)):
        pairs = parse_qsl(query, keep_blank_values=True)
        query = urlencode([(n, "***" if _SECRET.search(n) else v) for n, v in pairs], safe="*")
    cut_short = ("@" in host or ":" in host) and "@" in rest.removeprefix(host)
    if cut_short or ("@" not in host and _NO_PORT.search(host)):
        return f"{scheme}://***"
    host = host.rpartition("@")[2]
    return f"{scheme}://{host}{slash}{path}{query_mark}{query}{hash_mark}{fragment}"


def without_credentials(text: str) -> str:
    """Return a text, such as a library's error message, with every URL in it replaced by its `public_url`."""
    return _URL.sub(lambda found: public_url(found[0]), text)


def local_path(uri: str) -> Path | None:
    """Return the path of a `file:` URI, or of a path without scheme (decoded too, as MLflow does); else None."""
    if urlsplit(uri).scheme not in ("", "file"):
        return None
    parts = urlsplit(uri) if uri.startswith("file:") else None
    if parts and parts.hostname not in (None, "localhost", "127.0.0.1"):
        return None
    return Path(unquote(parts.path if parts else uri))
