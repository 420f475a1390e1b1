"""URLs and texts as they may be shown, logged and stored: without passwords and tokens."""

import re
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

_SECRET = re.compile(
    r"pass|pwd|token|secret|signature|credential|api_?key|access_?key|private|auth|jwt|cookie|session|odbc_connect"
    r"|conn\w*str|^dsn$|^(sig|key|code)$",
    re.IGNORECASE,
)
"""Names of parameters whose values are secrets, or hold some, as ODBC's connection string does."""

_NAME = re.compile(r"[\w.\[\]-]+")
_NO_HOST = ("databricks", "databricks-uc", "uc")
"""Schemes of MLflow behind which stands a profile, or a token, instead of a host."""

_NO_PORT = re.compile(r":(?!\d+$)(?![^\[]*\])")
"""A colon not followed by a port, outside IPv6 brackets: a `/` or `?` in a password ends the host part early."""

_URL = re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s'\"<>]+", re.IGNORECASE)
_ASSIGNED = re.compile(
    r"(?<![\w-])(?P<name>[\w-]*(?:pass|pwd|token|secret|signature|credential|api_?key|access_?key|odbc_connect)[\w-]*"
    r"(?:=|%3d))(?P<value>\{[^}]*\}|\"[^\"]*\"|'[^']*'|[^\s;,&'\"<>]+)",
    re.IGNORECASE,
)
"""`PWD=…` of a connection string, `password=…` of a driver's message, `token=…` of a query; also percent-encoded."""

_TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{8,}|(?i:\bdapi[0-9a-f]{8,}|(?<=\bBearer )[\w.~+/=-]+)")
"""Tokens of the Hub, whose `hf_` is small where HF_ENDPOINT is a variable's name; of Databricks, and of a header."""


def public_url(url: str) -> str:
    """Return a URL (or any text, unchanged) without credentials: user info is cut, secret parameters become `***`.

    A `/`, `?` or `#` in a password ends the host part early. If the rest contains the `@` that may end the password,
    the URL is hidden entirely if it has a user, or a number that may be a port or the start of a password. The same
    where the host part holds such a sign percent-encoded, or the scheme has no host.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    # Not `urlsplit`: it raises for what is no URL, and a password with / or ? moves what it calls the host.
    address, query_mark, query = rest.partition("?")
    host, slash, path = address.partition("/")
    query, hash_mark, fragment = query.partition("#")
    cut_short = ("@" in host or ":" in host) and "@" in rest.removeprefix(host)
    bare = host.rpartition("@")[2]
    # Encoded once by the user and once more by a library that puts the URL into another: decoded twice, too.
    plain = unquote(unquote(bare))
    is_encoded = plain != bare and ("@" in plain or _NO_PORT.search(plain))
    if cut_short or is_encoded or ("@" not in host and _NO_PORT.search(host)):
        return f"{scheme}://***"
    if scheme.lower().partition("+")[0] in _NO_HOST:
        return f"{scheme}://***"
    public = _public_query(query)
    if public != query and fragment:  # a # in a secret of the query: what follows is the rest of it
        fragment = "***"
    return f"{scheme}://{bare}{slash}{_hide(path)}{query_mark}{public}{hash_mark}{_hide(fragment)}"


def _public_query(query: str) -> str:
    """Return a query without secrets; unchanged if it has none."""
    if not _SECRET.search(unquote(unquote(query))) and not any(
        _SECRET.search(name) for name, _ in parse_qsl(query, keep_blank_values=True)
    ):
        return query
    if re.search(r"odbc_connect|;|\{", unquote(unquote(query)), re.IGNORECASE) or "=" not in query:
        return "***"  # a string of its own syntax
    if any("=" not in part for part in query.split("&")):
        return "***"  # an & in a secret
    pairs = [
        (name, "***" if _SECRET.search(unquote(name)) or _SECRET.search(unquote(unquote(value))) else value)
        for name, value in parse_qsl(query, keep_blank_values=True)
    ]
    return urlencode([(name if _NAME.fullmatch(name) else "***", value) for name, value in pairs], safe="*")


def _hide(text: str) -> str:
    """Return a text without the values of secret assignments, and without tokens."""
    return _TOKEN.sub("***", _ASSIGNED.sub(lambda match: f"{match['name']}***", text))


def without_credentials(text: str) -> str:
    """Return a text, such as a library's error message, with every URL in it replaced by its `public_url`.

    Passwords and tokens that are assigned outside of a URL are hidden, too.
    """
    return _hide(_URL.sub(lambda match: public_url(match[0]), text))


def local_path(uri: str) -> Path | None:
    """Return the path of a `file:` URI, or of a path without scheme (decoded too, as MLflow does); else None."""
    if urlsplit(uri).scheme not in ("", "file"):
        return None
    parts = urlsplit(uri) if uri.startswith("file:") else None
    # `file://server/share` is a folder of another machine, not of this one
    if parts and parts.hostname not in (None, "localhost", "127.0.0.1"):
        return None
    return Path(unquote(parts.path if parts else uri))
