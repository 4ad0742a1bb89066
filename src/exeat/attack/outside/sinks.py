"""Sockets outside the jail that accept everything and remember it. One thread serves them all.

What arrives is kept as bytes with the name of the target. The thread answers streams, so that a probe can wait until it
was heard.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

REPLY = b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\nConnection: close\r\n\r\nreached"
_TICK_S = 0.05
_QUIET_S = 0.1  # with no arrival for this long nothing is under way: loopback delivers at once
_KEPT = 20_000  # more than this is a probe gone wild; what came first is enough


class Sinks:
    """All targets that a token can reach, and what reached them."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._seen: list[tuple[str, bytes]] = []
        self._changed = threading.Condition()
        self._wishes: dict[Path, Callable[[], None]] = {}
        self._open: set[socket.socket] = set()
        self._last = 0.0
        self._running = True
        self._wake_in, self._wake_out = os.pipe()
        self._selector.register(self._wake_in, selectors.EVENT_READ, None)
        self._thread = threading.Thread(target=self._serve, name="sinks", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def listen(self, name: str, sock: socket.socket) -> None:
        """Accept streams on a bound socket."""
        sock.listen(64)
        self._add(sock, lambda: self._accept(name, sock))

    def receive(self, name: str, sock: socket.socket, *, answer: Callable[[bytes], bytes] | None = None) -> None:
        """Take datagrams on a bound socket, and answer each where a protocol needs that."""
        self._add(sock, lambda: self._datagram(name, sock, answer))

    def watch(self, name: str, sock: socket.socket) -> None:
        """Read a connected stream that is already there."""
        self._add(sock, lambda: self._read(name, sock))

    def wish(self, path: Path, grant: Callable[[], None]) -> None:
        """Do something, once, when a file appears: how a probe asks for a target that comes late."""
        self._wishes[path] = grant

    def forget(self) -> None:
        """Start a new run."""
        with self._changed:
            self._seen.clear()

    def where(self, mark: str) -> list[str]:
        """The names of the targets that a mark has reached."""
        with self._changed:
            return self._where(mark)

    def wait_for(self, mark: str, timeout_s: float) -> list[str]:
        """As `where`, but with time for a mark that is under way."""
        end = time.monotonic() + timeout_s
        with self._changed:
            while not (found := self._where(mark)) and (left := end - time.monotonic()) > 0:
                self._changed.wait(left)
        return found

    def settle(self) -> None:
        """Return when all that was sent before has been read."""
        begin = time.monotonic()
        while time.monotonic() - max(begin, self._last) < _QUIET_S:
            time.sleep(_TICK_S / 5)

    def close(self) -> None:
        self._running = False
        os.write(self._wake_out, b"x")
        if self._thread.ident is not None:
            self._thread.join()
        for sock in self._open:
            sock.close()
        self._selector.close()
        os.close(self._wake_in)
        os.close(self._wake_out)

    def note(self, name: str, data: bytes) -> None:
        """Remember an arrival."""
        self._last = time.monotonic()
        with self._changed:
            if len(self._seen) < _KEPT:
                self._seen.append((name, data))
            self._changed.notify_all()

    def _where(self, mark: str) -> list[str]:
        wanted = mark.lower().encode()
        return sorted({name for name, data in self._seen if wanted in data.lower()})

    def _add(self, sock: socket.socket, serve: Callable[[], None]) -> None:
        sock.setblocking(False)
        self._open.add(sock)
        self._selector.register(sock, selectors.EVENT_READ, serve)

    def _drop(self, sock: socket.socket) -> None:
        self._selector.unregister(sock)
        self._open.discard(sock)
        sock.close()

    def _serve(self) -> None:
        while self._running:
            for key, _ in self._selector.select(_TICK_S):
                if key.data is not None:
                    key.data()
            for path in [path for path in self._wishes if path.exists()]:
                self._wishes.pop(path)()

    def _accept(self, name: str, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            self.watch(name, listener.accept()[0])

    def _read(self, name: str, sock: socket.socket) -> None:
        try:
            data = sock.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(sock)
            return
        self.note(name, data)
        with contextlib.suppress(OSError):  # a peer that did not wait for the answer was heard all the same
            sock.send(REPLY)

    def _datagram(self, name: str, sock: socket.socket, answer: Callable[[bytes], bytes] | None) -> None:
        try:
            data, peer = sock.recvfrom(65536)
        except OSError:
            return
        self.note(name, data)
        if answer is not None:
            with contextlib.suppress(OSError):
                sock.sendto(answer(data), peer)


def nothing_there(query: bytes) -> bytes:
    """A name server's answer that the name does not exist."""
    return query[:2] + b"\x81\x83" + query[4:6] + b"\0\0\0\0\0\0" + query[12:]
