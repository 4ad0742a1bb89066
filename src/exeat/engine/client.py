"""An engine's HTTP API over its Unix socket. One connection for each call, so threads may share an `Engine`.

The requests are a dozen and the parser is C (httptools). The SDKs for it take 200 ms to load, more than a run has for
all that it does.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from typing import Any, Final, TypedDict, Unpack

import httptools

from exeat.engine.errors import ConflictError, EngineError, NotFoundError

CALL_S: Final = 120.0  # the engine may be busy with others
_CHUNK: Final = 1 << 16
_LOOK_MS: Final = 100
_MAX_ANSWER: Final = 64 << 20
_PEER: Final = struct.Struct("iII")
_UNKNOWN_UID: Final = 65_534  # of a user that this user namespace does not have


class Sent(TypedDict, total=False):
    """What may be said of a request. `opened` gets the connection before anything is sent, to break it off."""

    query: Mapping[str, object] | None
    body: object  # as JSON
    data: bytes | Iterable[bytes] | None
    headers: Mapping[str, str] | None
    timeout_s: float | None
    opened: Callable[[socket.socket], None] | None


class Engine:
    """One engine. `kind` is docker or podman; `where` is the path of its socket."""

    def __init__(self, where: str, kind: str = "", *, held: int = -1) -> None:
        """`held` is a descriptor that keeps an engine of our own running, until this process ends."""
        self.where = where
        self._held = held
        self._kind = kind
        self._info: dict[str, Any] | None = None
        # Called while an answer is waited for, and may raise: a run has signals blocked, and a pull takes long.
        self.while_waiting: Callable[[], None] | None = None

    @property
    def kind(self) -> str:
        if not self._kind:
            with closing(self.request("GET", "/_ping")) as answer:
                self._kind = "podman" if "libpod-api-version" in answer.headers else "docker"
        return self._kind

    @property
    def is_for_us(self) -> bool:
        """Did this process start it, for itself?"""
        return self._held >= 0

    def info(self, timeout_s: float = CALL_S) -> dict[str, Any]:
        """What it says of itself, once."""
        if self._info is None:
            self._info = self.call("GET", "/info", timeout_s=timeout_s)
        return self._info

    def ask_peer(self) -> tuple[int, int]:
        """Who listens at the socket: pid and uid, as they are here."""
        with closing(self.connect()) as connection:
            pid, uid, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
        return pid, uid

    @property
    def is_rootless(self) -> bool:
        if self.kind == "podman":
            # Its /info takes a second on Debian, where it asks the package manager about its parts.
            uid = self.ask_peer()[1]
            if uid != _UNKNOWN_UID:
                return uid != 0
        info = self.info()
        return bool(info.get("Rootless")) or any("rootless" in each for each in info.get("SecurityOptions") or ())

    def call(self, method: str, path: str, **how: Unpack[Sent]) -> Any:
        """The answer as JSON; None if it is empty. Raises EngineError, by its status."""
        answer = self.raw(method, path, **how)
        return _decode(answer) if answer.strip() else None

    def raw(self, method: str, path: str, **how: Unpack[Sent]) -> bytes:
        """The answer's body."""
        with closing(self.request(method, path, **how)) as answer:
            return answer.read()

    def stream(self, method: str, path: str, **how: Unpack[Sent]) -> Iterator[dict[str, Any]]:
        """Its lines of JSON as they come: progress, events. Without a time limit unless one is said."""
        how.setdefault("timeout_s", None)
        with closing(self.request(method, path, **how)) as answer:
            rest = b""
            for piece in answer.pieces():
                *lines, rest = (rest + piece).split(b"\n")
                for line in filter(bytes.strip, lines):
                    yield _decode(line)
            if rest.strip():
                yield _decode(rest)

    def request(self, method: str, path: str, **how: Unpack[Sent]) -> Answer:
        """Send it and read the head of the answer. Raises EngineError if that says no."""
        connection = self.connect(how.get("timeout_s", CALL_S))
        try:
            if opened := how.get("opened"):
                opened(connection)
            target = _target(path, how.get("query"))
            _send(connection, method, target, how.get("body"), how.get("data"), how.get("headers") or {})
            answer = Answer(connection, self.while_waiting)
        except (OSError, httptools.HttpParserError) as error:
            connection.close()
            raise EngineError("the engine does not answer", detail=f"{self.where}: {error}") from None
        except BaseException:
            connection.close()
            raise
        if answer.status >= 300:
            with closing(answer):
                raise _refusal(answer.status, answer.read() if method != "HEAD" else b"", method, path)
        return answer

    def connect(self, timeout_s: float | None = CALL_S) -> socket.socket:
        """A connection on which nothing is said yet. Raises EngineError."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        connection.settimeout(timeout_s)
        try:
            connection.connect(self.where)
        except OSError as error:
            connection.close()
            from exeat.engine.find import explain_no_socket  # for those without an engine

            raise explain_no_socket(self.where, error) from None
        return connection


class Answer:
    """The head is there; the body is read from the connection, which is closed with it."""

    def __init__(self, connection: socket.socket, while_waiting: Callable[[], None] | None = None) -> None:
        self.connection = connection
        self._while_waiting = while_waiting
        self.headers: dict[str, str] = {}
        self._pieces: list[bytes] = []
        self._has_head = self._is_whole = False
        self._parser = httptools.HttpResponseParser(self)
        while not self._has_head:
            self._feed()
        self.status: int = self._parser.get_status_code()

    def _feed(self) -> bool:
        self._wait()
        data = self.connection.recv(_CHUNK)
        if not data:
            if not self._has_head or self.headers.keys() & {"content-length", "transfer-encoding"}:
                raise ConnectionError("it has closed the connection")
            self._is_whole = True
            return False
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:  # a stream from here on
            self._pieces.append(data[upgrade.args[0] :])
        return True

    def _wait(self) -> None:
        if self._while_waiting is None:
            return
        import select  # for who waits for a person, too
        import time

        limit = self.connection.gettimeout()
        deadline = time.monotonic() + limit if limit is not None else None
        poll = select.poll()
        poll.register(self.connection, select.POLLIN)
        while not poll.poll(_LOOK_MS):
            self._while_waiting()
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError("timed out")

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._has_head = True

    def on_body(self, data: bytes) -> None:
        self._pieces.append(data)

    def on_message_complete(self) -> None:
        self._is_whole = True

    def pieces(self) -> Iterator[bytes]:
        """The body as it comes. Raises EngineError if the engine stops in the middle or takes too long."""
        while True:
            pieces, self._pieces = self._pieces, []
            yield from pieces
            if self._is_whole and not self._pieces:
                return
            try:
                self._feed()
            except (OSError, httptools.HttpParserError) as error:
                raise EngineError("the engine has stopped answering", detail=str(error)) from None

    def read(self) -> bytes:
        whole = bytearray()
        for piece in self.pieces():
            whole += piece
            if len(whole) > _MAX_ANSWER:
                raise EngineError("the engine's answer is too long", detail=f"more than {_MAX_ANSWER} bytes")
        return bytes(whole)

    def take_start(self) -> bytes:
        """Bytes of the stream that came with the head, for the next user of `connection`."""
        start, self._pieces = b"".join(self._pieces), []
        return start

    def close(self) -> None:
        self.connection.close()


def _decode(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise EngineError("the engine's answer is not JSON", detail=repr(text[:200])) from None


def _target(path: str, query: Mapping[str, object] | None) -> str:
    """Raises EngineError for a path that would end the line it is in: what follows would be requests of its own."""
    if not path.isascii() or not path.isprintable() or " " in path:
        raise EngineError("an engine cannot have such a name", detail=repr(path[:200]))
    if not query:
        return path
    from urllib.parse import urlencode  # for calls that have one

    texts = {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in query.items()
        if value is not None
    }
    return f"{path}?{urlencode(texts)}"


def _send(
    connection: socket.socket,
    method: str,
    target: str,
    body: object,
    data: bytes | Iterable[bytes] | None,
    headers: Mapping[str, str],
) -> None:
    fields = {"Host": "engine", "Connection": "close", "User-Agent": "exeat", **headers}
    if body is not None:
        data = json.dumps(body).encode()
        fields["Content-Type"] = "application/json"
    if data is None or isinstance(data, bytes):
        data = data or b""
        fields["Content-Length"] = str(len(data))
    else:
        fields["Transfer-Encoding"] = "chunked"
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    head = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"
    if isinstance(data, bytes):
        connection.sendall(head + data)
        return
    connection.sendall(head)
    for piece in data:
        if piece:
            connection.sendall(b"%x\r\n%b\r\n" % (len(piece), piece))
    connection.sendall(b"0\r\n\r\n")


def _refusal(status: int, body: bytes, method: str, path: str) -> EngineError:
    try:
        said = str(json.loads(body).get("message") or json.loads(body).get("cause") or "")
    except (ValueError, AttributeError):
        said = body.decode("utf-8", "replace")
    kind = {404: NotFoundError, 409: ConflictError}.get(status, EngineError)
    return kind(
        f"the engine refused: {said[:2000].strip() or status}", detail=f"{method} {path}: {status}", status=status
    )
