"""How an asynchronous call waits: on a future of its event loop, with no thread of its own.

The native side writes one byte to a socket when a call is answered, and the loop reads it as it reads any other
socket. So the thread that runs the tower never takes the GIL, and a process that forks has no runtime to lose.
"""

from __future__ import annotations

import asyncio
import itertools
import weakref
from collections.abc import Sequence
from typing import Any

from . import _native


class _Desk:
    """The calls of one event loop that wait for their answers. The loop keeps it, as the reader of its mailbox."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.mailbox = _native.Mailbox()
        self._tokens = itertools.count()
        self._futures: dict[int, asyncio.Future[None]] = {}
        loop.add_reader(self.mailbox.fileno(), self._read)

    def open(self, loop: asyncio.AbstractEventLoop) -> tuple[int, asyncio.Future[None]]:
        """A new token, used once, and the future that is done when the token arrives."""
        token, future = next(self._tokens), loop.create_future()
        self._futures[token] = future
        return token, future

    def close(self, token: int) -> None:
        self._futures.pop(token, None)

    def _read(self) -> None:
        for token in self.mailbox.drain():
            future = self._futures.get(token)
            if future is not None and not future.done():
                future.set_result(None)


# Weak on both sides: a desk's futures lead to their loop, which a strong reference here would keep for ever if it was
# closed while calls were under way, and with it their results and the mailbox's file descriptors.
_desks: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.ref[_Desk]] = weakref.WeakKeyDictionary()


def _desk_of(loop: asyncio.AbstractEventLoop) -> _Desk:
    known = _desks.get(loop)
    desk = None if known is None else known()
    if desk is None:
        desk = _Desk(loop)
        _desks[loop] = weakref.ref(desk)
    return desk


async def outcomes(
    encoder: _native.Encoder, sources: list[bytes], counts: Sequence[int] | None, timeout: float | None
) -> list[Any]:
    """`encoder.generate`, awaited. Cancelling the task takes what has not begun out of the queue."""
    if not sources:
        return []
    loop = asyncio.get_running_loop()
    desk = _desk_of(loop)
    token, future = desk.open(loop)
    timer: asyncio.TimerHandle | None = None
    requests: _native.Requests | None = None
    try:
        requests = encoder.submit(sources, counts, desk.mailbox, token)
        if timeout == 0:
            requests.expire()
        elif timeout is not None:
            timer = loop.call_later(timeout, requests.expire)
        await future
        return requests.results()
    finally:
        desk.close(token)
        if timer is not None:
            timer.cancel()
        if requests is not None:
            requests.cancel()
