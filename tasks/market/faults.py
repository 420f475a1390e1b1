"""What can go wrong between a server and a stored candle, one class for each way of handling it."""


class SourceFault(Exception):
    """A request that got no usable answer; the message is the reason shown to the user."""


class NotFound(SourceFault):
    """The server says that there is no such file."""


class Rejected(SourceFault):
    """The server rejects the request (400): REST does so for pairs that were delisted."""


class Refused(SourceFault):
    """The server refuses this client (403, 418, 451): retrying only prolongs a ban."""


class Unreachable(SourceFault):
    """No answer after all tries: connection, timeout, 429 or 5xx."""


class BadFile(Exception):
    """A file whose contents must not enter the store; the message is the reason for its quarantine."""

    def __init__(self, reason: str, payload: bytes = b"") -> None:
        super().__init__(reason)
        self.payload = payload
