"""Websockets that do not sign in get 20 places and a few seconds; those that did are not limited."""

import asyncio
import json

import pytest

from flows.deploy.server import origins
from flows.ops import guard
from flows.ops.guard import Guard
from flows.ops.listeners import PREFECT

OWN = [(b"host", b"127.0.0.1:4200")]


async def prefect(scope, receive, send):
    """Accepts a socket, waits for the password in its first message, and works until it is closed."""
    await send({"type": "websocket.accept"})
    message = await receive()
    assert message["type"] == "websocket.receive"
    ok = message["text"] == "the password"
    await send({"type": "websocket.send", "text": json.dumps({"type": "auth_success" if ok else "no"})})
    while (await receive())["type"] != "websocket.disconnect":
        pass


class Socket:
    """A client's end."""

    def __init__(self, guard):
        self.said, self.got = asyncio.Queue(), []
        scope = {"type": "websocket", "path": "/api/events/in", "headers": OWN}
        self.task = asyncio.create_task(guard(scope, self.said.get, self._keep))

    async def _keep(self, message):
        self.got.append(message)

    def say(self, text):
        self.said.put_nowait({"type": "websocket.receive", "text": text})

    def closed(self):
        return [message["code"] for message in self.got if message["type"] == "websocket.close"]


def guarded(app=prefect):
    return Guard(app, PREFECT, origins=origins(4200))


async def turns(count=10):
    for _ in range(count):
        await asyncio.sleep(0)


def test_the_twenty_first_silent_socket_is_closed_at_once_and_a_place_is_free_again_after_the_time(
    monkeypatch,
):
    monkeypatch.setattr(guard, "SIGN_IN_S", 0.2)

    async def attack():
        guard = guarded()
        silent = [Socket(guard) for _ in range(101)]
        await turns()
        assert [bool(one.closed()) for one in silent] == [False] * 20 + [True] * 81
        assert not any(message["type"] == "websocket.accept" for one in silent[20:] for message in one.got)
        await asyncio.gather(*(one.task for one in silent))
        assert [one.closed() for one in silent[:20]] == [[1008]] * 20
        late = Socket(guard)
        await turns()
        assert late.closed() == []
        late.task.cancel()

    asyncio.run(attack())


def test_signed_in_sockets_take_no_place_and_stay(monkeypatch):
    monkeypatch.setattr(guard, "SIGN_IN_S", 0.2)

    async def work():
        guard = guarded()
        known = []
        for _ in range(60):
            known.append(Socket(guard))
            known[-1].say("the password")
            await turns()
        silent = [Socket(guard) for _ in range(20)]
        await asyncio.gather(*(one.task for one in silent))  # longer than the time for signing in
        assert not any(one.closed() or one.task.done() for one in known)
        for one in known:
            one.task.cancel()

    asyncio.run(work())


def test_a_wrong_password_does_not_stop_the_clock(monkeypatch):
    monkeypatch.setattr(guard, "SIGN_IN_S", 0.2)

    async def guess():
        socket = Socket(guarded())
        socket.say("a guess")
        socket.say("another")
        await socket.task
        assert socket.closed() == [1008]

    asyncio.run(guess())


def test_an_error_of_the_application_passes_and_frees_the_place():
    async def broken(scope, receive, send):
        raise TimeoutError("its own")

    async def many():
        guard = guarded(broken)
        for _ in range(30):
            with pytest.raises(TimeoutError, match="its own"):
                await Socket(guard).task

    asyncio.run(many())
