"""Errors between a server and a stored candle, a class per way of handling them."""


class SourceFault(Exception):
    """A request without a usable response; the message is the reason shown to the user."""


class NotFound(SourceFault):
    """The server reports that there is no such file."""


class Rejected(SourceFault):
    """The server rejects the request (400): REST does so for delisted pairs."""


class Refused(SourceFault):
    """The server refuses this client (403, 418, 451): retrying only prolongs a ban."""


class Unreachable(SourceFault):
    """No response after all tries: connection, timeout, 429 or 5xx."""


class BadFile(Exception):
    """A file whose contents must not enter the store; the message is the reason for its quarantine."""

    def __init__(self, reason: str, payload: bytes = b"") -> None:
        super().__init__(reason)
        self.payload = payload
