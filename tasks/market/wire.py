"""What servers write into headers, and network errors as plain sentences."""

import math
import re
import time
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime

from requests.exceptions import InvalidProxyURL, InvalidSchema, InvalidURL, ProxyError, SSLError
from urllib3.exceptions import NewConnectionError, ProxySchemeUnknown

from tasks.market.deadline import DeadlineExceeded
from tasks.storage.urls import without_credentials


def whole_number(text: str) -> int:
    """Return a count that a server wrote, -1 if it is none (`int` would take "²" for a digit and fail)."""
    return int(text) if re.fullmatch(r"[0-9]{1,15}", text.strip()) else -1


def retry_after_seconds(headers: Mapping[str, str]) -> int | None:
    """Return the seconds of a Retry-After, which may be a date; None if there is none that makes sense.

    Dates are read against the server's own clock: urllib3's `Retry` takes ours, which may be wrong.
    """
    value = headers.get("Retry-After", "").strip()
    if (seconds := whole_number(value)) >= 0:
        return seconds
    try:
        until = parsedate_to_datetime(value).timestamp()
        now = parsedate_to_datetime(headers["Date"]).timestamp() if "Date" in headers else time.time()
        return max(0, math.ceil(until - now))
    except (ValueError, TypeError, OverflowError):
        return None


_REASONS = {
    "ead timed out": "timed out",
    "content-encoding": "an answer that cannot be decoded",
    "IncompleteRead": "connection cut in the middle of the answer",
    "reset by peer": "connection reset",
    "without response": "connection closed without an answer",
    "BadStatusLine": "an answer that is not HTTP",
    "Connection aborted": "an answer that is not HTTP",
}


def reason_of(error: BaseException) -> str:
    """Return the part of a network error that helps: requests and urllib3 wrap the cause several times."""
    causes = list(_causes(error))
    for cause in causes:
        if isinstance(cause, DeadlineExceeded):
            return str(cause)
    if isinstance(error, ProxyError | InvalidProxyURL) or any(
        isinstance(c, ProxySchemeUnknown) for c in causes
    ):
        return f"the proxy cannot be used ({_text(causes[-1])}); check HTTP_PROXY, HTTPS_PROXY and NO_PROXY"
    if isinstance(error, SSLError):
        return (
            f"its certificate cannot be verified ({_text(causes[-1])}); "
            "name your network's certificates in REQUESTS_CA_BUNDLE"
        )
    if isinstance(error, InvalidURL | InvalidSchema):
        return without_credentials(str(error))
    message = " ".join(map(str, causes))
    known = (reason for sign, reason in _REASONS.items() if sign in message)
    return next(known, "timed out" if message.endswith("timed out") else _text(causes[-1]))


def is_unconnected(error: BaseException) -> bool:
    """Whether no connection came about."""
    return any(isinstance(cause, NewConnectionError) for cause in _causes(error))


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and those it wraps, the innermost last: as argument, as `reason` or as cause."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        yield current
        seen.add(id(current))
        wrapped = [getattr(current, "reason", None), *current.args, current.__cause__]
        current = next((w for w in wrapped if isinstance(w, BaseException)), None)


def _text(error: BaseException) -> str:
    """Return an error's message without the object in front that urllib3 prints."""
    message = re.sub(r"^(<.*?>|\w+\(.*?\)): ", "", str(error)) or type(error).__name__
    return without_credentials(message)
