"""Long one-way flows, moved by the kernel: socket to pipe to socket, no byte copied into this process.

Taken up by a tunnel after its first megabyte in one direction; short exchanges never pay for the pipe.
A gigabyte costs about a third of the CPU that reading and writing it does (bench/RESULTS.md, bulk).
"""

from __future__ import annotations

import fcntl
import os
import select
from collections.abc import Callable
from typing import Final

from exeat.gateway.flow.channel import Channel

_PIPE_BYTES: Final = 1024 * 1024
_F_SETPIPE_SZ: Final = 1031
# A round costs 30 us and more, however little it moves. After one of this size, which is less than a fast source sends
# in a moment, more is let come first: a fifth of the rounds, and a fifth to a third less CPU. Smaller ones may be
# messages that someone waits for.
_LETS_COME_BYTES: Final = range(32 * 1024, 256 * 1024)
_MOMENT_S: Final = 0.001
_FLAGS: Final = getattr(os, "SPLICE_F_MOVE", 0) | getattr(os, "SPLICE_F_NONBLOCK", 0)


class Splice:
    """One direction of a tunnel. The source's transport must be paused from now on.

    `on_end` is told how the source has ended it, `on_refused` that the target takes no more.
    """

    __slots__ = (
        "_end", "_failure", "_in_pipe", "_moved", "_on_end", "_on_refused", "_pipe_in", "_pipe_out", "_reading",
        "_source", "_source_fd", "_target", "_target_fd", "_urgent", "_writing", "ended", "source_done",
    )  # fmt: skip

    def __init__(
        self,
        source: Channel,
        target: Channel,
        on_end: Callable[[OSError | None], None],
        on_refused: Callable[[], None],
    ) -> None:
        """Raises OSError when descriptors have run out; nothing is changed then."""
        self._source = source
        self._target = target
        self._on_end = on_end
        self._on_refused = on_refused
        self._in_pipe = 0
        self._moved = 0  # in the last round
        self._reading = self._writing = False
        self.ended = self.source_done = False
        self._failure: OSError | None = None
        opened: list[int] = []
        try:
            opened += os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
            # The loop refuses to watch a descriptor that belongs to a transport; a duplicate is its own.
            opened += [os.dup(channel.transport.get_extra_info("socket").fileno()) for channel in (source, target)]
        except OSError:
            for descriptor in opened:
                os.close(descriptor)
            raise
        self._pipe_out, self._pipe_in, self._source_fd, self._target_fd = opened
        self._end = select.poll()
        self._end.register(self._source_fd, select.POLLRDHUP)
        self._urgent = select.poll()
        self._urgent.register(self._source_fd, select.POLLPRI)
        try:
            fcntl.fcntl(self._pipe_in, _F_SETPIPE_SZ, _PIPE_BYTES)
        except OSError:
            pass  # over the user's allowance for pipes: the default size works too
        self._watch(reading=True, writing=False)

    def _watch(self, *, reading: bool, writing: bool) -> None:
        loop = self._source.loop
        if reading != self._reading:
            self._reading = reading
            if reading:
                loop.add_reader(self._source_fd, self._move)
            else:
                loop.remove_reader(self._source_fd)
        if writing != self._writing:
            self._writing = writing
            if writing:
                loop.add_writer(self._target_fd, self._move)
            else:
                loop.remove_writer(self._target_fd)

    def _move(self) -> None:
        """Move what can be moved now. One round per wake-up: other connections want their turn."""
        if self.ended:
            return
        if self._target.transport.get_write_buffer_size():
            self._watch(reading=False, writing=True)  # what was written before goes first
            return
        try:
            if not self.source_done and self._in_pipe < _PIPE_BYTES:
                self._fill()
            if self._in_pipe:
                self._empty()
        except OSError:
            self.close()
            self._on_refused()
            return
        if self.source_done and not self._in_pipe:
            self.close()
            self._on_end(self._failure)
            return
        if self._moved in _LETS_COME_BYTES and not (self._in_pipe or self.source_done):
            self._watch(reading=False, writing=False)
            self._source.loop.call_later(_MOMENT_S, self._move)
            return
        # While the target is full, wait for it alone: that is the back-pressure.
        self._watch(reading=not self.source_done and not self._in_pipe, writing=self._in_pipe > 0)
        if self._reading and self._end.poll(0):
            # libuv tells of a reset only once, together with the bytes before it, and then looks no more: a round
            # that took only the bytes would wait for ever.
            self._source.loop.call_soon(self._move)

    def _fill(self) -> None:
        self._moved = 0
        try:
            moved = self._take()
        except BlockingIOError:
            return
        except OSError as error:
            # A reset: what came before it is still delivered, and then it is passed on.
            self._failure = error
            moved = 0
        if moved == 0:
            self.source_done = True
        self._in_pipe += moved
        self._moved = moved
        self._source.count_moved(received=moved)

    def _take(self) -> int:
        """Bytes that are in the pipe now, or 0 at the end of the source."""
        try:
            moved = os.splice(self._source_fd, self._pipe_in, _PIPE_BYTES, flags=_FLAGS)
        except BlockingIOError:
            if not self._urgent.poll(0):
                raise
            moved = 0
        if moved or not self._urgent.poll(0):
            return moved
        # The kernel splices nothing from urgent data on, and calls that the end if the end has come. A read passes it.
        if self._in_pipe:
            raise BlockingIOError
        return os.write(self._pipe_in, os.read(self._source_fd, select.PIPE_BUF))

    def _empty(self) -> None:
        try:
            moved = os.splice(self._pipe_out, self._target_fd, self._in_pipe, flags=_FLAGS)
        except BlockingIOError:
            return
        self._in_pipe -= moved
        self._target.count_moved(sent=moved)

    def close(self) -> None:
        """Let go of the descriptors. What is in the pipe is lost, so only at the end or to cut the tunnel."""
        if not self.ended:
            self.ended = True
            self._watch(reading=False, writing=False)
            for descriptor in (self._pipe_out, self._pipe_in, self._source_fd, self._target_fd):
                os.close(descriptor)
