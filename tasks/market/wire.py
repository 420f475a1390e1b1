"""What servers write into headers, and what their silence is called: read with care, said plainly."""

import math
import re
import time
from email.utils import parsedate_to_datetime

import urllib3


def whole_number(text: str) -> int:
    """Return a count that somebody else wrote, -1 if it is none (`int` would take "²" for a digit and fail)."""
    return int(text) if re.fullmatch(r"[0-9]{1,15}", text.strip()) else -1


def seconds_asked(headers: urllib3.HTTPHeaderDict) -> int | None:
    """Return the seconds of a Retry-After, which may be a date; None if there is none that makes sense."""
    asked = headers.get("Retry-After", "").strip()
    if (seconds := whole_number(asked)) >= 0:
        return seconds
    try:
        until = parsedate_to_datetime(asked).timestamp()
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


def reason_of(error: Exception) -> str:
    """Return the part of a network error that helps: urllib3 puts objects and Python's own words around it."""
    message = re.sub(r"^(<.*?>|\w+\(.*?\)): ", "", str(error)) or type(error).__name__
    known = (said for sign, said in _REASONS.items() if sign in message)
    return next(known, "timed out" if message.endswith("timed out") else message)
