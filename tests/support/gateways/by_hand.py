"""A loop whose turns a test takes, and a transport that keeps what is written to it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, cast

from exeat.gateway.flow.channel import Channel


class Turns:
    """A loop whose turns are taken by hand."""

    def __init__(self) -> None:
        self._due: deque[Callable[[], None]] = deque()
        self._real: asyncio.AbstractEventLoop | None = None

    def call_soon(self, call: Callable[[], None]) -> None:
        self._due.append(call)

    def create_future(self) -> asyncio.Future[None]:
        self._real = self._real or asyncio.new_event_loop()
        return self._real.create_future()

    def turn(self) -> bool:
        for _ in range(len(self._due)):
            self._due.popleft()()
        return bool(self._due)

    def close(self) -> None:
        if self._real is not None:
            self._real.close()


class Wire:
    """A transport. It keeps what is written, and tells its channel when it is closed."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._reading = True
        self._closing = False
        self.written = b""
        self.has_eof = False
        channel.insert_layer(cast("Any", self))

    def write(self, data: bytes) -> None:
        assert not self.has_eof
        self.written += data

    def write_eof(self) -> None:
        self.has_eof = True

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return self._reading

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str) -> None:
        return None

    def close(self) -> None:
        self._closing = True

    abort = close
