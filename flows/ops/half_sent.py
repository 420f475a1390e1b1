"""HTTP for every server of cpb: a connection whose request does not arrive whole within a time is ended."""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_S = 10
"""Time from a request's first byte, or from the connection before the first request, to its last byte."""
_BODY_BYTES_S = 16_384
"""Bytes of a body for which a request gets another second: uploads may be long, but not trickle."""


class HalfSentEnds(H11Protocol):
    """HTTP/1.1 that ends connections whose request is not complete in time, which uvicorn would hold for ever.

    uvicorn's only time limit is that of idle connections after an answer, and a single further byte lifts it. A request
    that is complete is never ended, however long its answer takes.
    """

    _deadline: asyncio.TimerHandle | None = None
    _begun = _received = 0.0
    """When the request began (the loop's clock), and how many bytes have come since."""

    def connection_made(self, transport: Any) -> None:
        """Await the first request."""
        super().connection_made(transport)
        self._begin()

    def data_received(self, data: bytes) -> None:
        """Handle bytes of a request; the first after an answer begin another."""
        if self.timeout_keep_alive_task is not None and self.conn.their_state is h11.IDLE:
            self._begin()
        self._received += len(data)
        super().data_received(data)
        self._look()

    def send_400_response(self, msg: str) -> None:
        """Refuse a malformed request, or end its connection if it is being answered, as only its body is malformed.

        uvicorn would let the answer follow the refusal, or the refusal the answer: h11 raises, with a traceback.
        """
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True  # to the application, the client has left
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()

    def on_response_complete(self) -> None:
        """Await the rest of the request, or the next, parts of which may have come already."""
        super().on_response_complete()
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        """Await nothing more."""
        self._stop()
        super().connection_lost(exc)

    def _begin(self) -> None:
        self._stop()
        self._begun, self._received = self.loop.time(), 0.0
        self._deadline = self.loop.call_later(REQUEST_S, self._expire)

    def _stop(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _look(self) -> None:
        """Stop the clock of a complete request, and start it for one of which something is still to come."""
        is_open = self.conn.their_state in (h11.IDLE, h11.SEND_BODY)
        # the connection of a WebSocket has another protocol from its handshake on
        if not is_open or self.transport.is_closing() or self.transport.get_protocol() is not self:
            self._stop()
        elif self._deadline is None:
            self._begin()

    def _expire(self) -> None:
        left = self._begun + REQUEST_S - self.loop.time()
        # after the answer nobody reads the rest of a body
        if self.conn.their_state is h11.SEND_BODY and not self.cycle.response_complete:
            left += self._received / _BODY_BYTES_S
        if self.flow.read_paused:  # by the application, which has not taken what came before
            left = REQUEST_S
        if left > 0:
            self._deadline = self.loop.call_later(left, self._expire)
        elif self.conn.our_state is h11.IDLE and self.conn.trailing_data[0]:
            why = h11.Response(status_code=408, headers=[("connection", "close")], reason=b"Request Timeout")
            for event in (why, h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
            self.transport.close()
        else:
            self.transport.abort()
