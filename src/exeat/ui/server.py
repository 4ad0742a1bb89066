"""`exeat ui`: the page over HTTP on loopback. Small, bounded, and closed to all but the page itself."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import secrets
import signal
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

from exeat.errors import ConfigError, ExeatError, ProtocolError, StartError
from exeat.ui.actions import ACTIONS
from exeat.ui.answers import LAST_CHUNK, begin_lines, encode_answer, encode_error, encode_json, encode_line, load_page
from exeat.ui.feed import TICK_S, Lists, Watch
from exeat.ui.guard import ADDRESS, Guard, Ticket, is_of_this_user
from exeat.wire.http1 import RequestHead, parse_request_head

_log = logging.getLogger("exeat")
_MAX_HEAD: Final = 16 * 1024
_MAX_BODY: Final = 16 * 1024
_PATIENCE_S: Final = 5.0
_MAX_CONNECTIONS: Final = 32
# A browser opens six connections to a server at most, and each page holds one. The newest pages get them.
_MAX_PAGES: Final = 4
_LIVE: Final = re.compile(rb"/api/live(?:\?sandbox=([a-z0-9-]{1,40}))?")
_OPEN: Final = "/api/open"

_Result = TypeVar("_Result")
_STOLEN = (
    "the link that was opened in the browser was used twice, so someone else on this machine may have read it; "
    "exeat ui has ended: start it without --open"
)


class PageServer:
    """Serves the page from `start` to `close`. `ticket` is what a link that others may see has instead of the token."""

    def __init__(self, token: str, ticket: Ticket) -> None:
        self._token = token
        self._ticket = ticket
        self._page = load_page()
        self._lists = Lists()
        self._connections = 0
        self._is_closing = False
        self._pages: list[asyncio.Task[None]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        # Files and sockets that may make one wait. More threads than pages, so that a button always works.
        self._threads = ThreadPoolExecutor(_MAX_PAGES + 4, "exeat-ui")

    async def start(self, port: int) -> int:
        """Take the port; 0 takes any. Raises StartError."""
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((ADDRESS, port))
            taken = int(listener.getsockname()[1])
            self._port = taken
            self._guard = Guard(taken, self._token)
            self._server = await asyncio.start_server(self._accept, sock=listener, limit=_MAX_HEAD)
        except OSError as error:
            listener.close()
            raise StartError(f"cannot listen on {ADDRESS}:{port}: {error.strerror or error}") from None
        return taken

    async def close(self) -> None:
        self._is_closing = True
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)  # for a connection that was on its way in
        # A thread that waits for a command that does not answer is not waited for.
        self._threads.shutdown(wait=False)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_closing:
            writer.transport.abort()
            return
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # By now it is closed, unless the task was cancelled before it had begun.
        task.add_done_callback(lambda _: writer.transport.abort())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            if self._connections > _MAX_CONNECTIONS:
                writer.write(encode_error(503, "too many connections"))
            else:
                await self._converse(reader, writer)
            async with asyncio.timeout(_PATIENCE_S):
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError):
            pass
        except Exception:
            _log.exception("a request to the page could not be answered")
        finally:
            await self._part(writer)
            self._connections -= 1

    async def _part(self, writer: asyncio.StreamWriter) -> None:
        """End a connection. One who does not take what is left does not keep it."""
        writer.close()
        try:
            async with asyncio.timeout(0 if self._is_closing else _PATIENCE_S):
                await writer.wait_closed()
        except (TimeoutError, OSError):
            writer.transport.abort()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                head = parse_request_head(await reader.readuntil(b"\r\n\r\n"))
                path = head.target.decode("ascii")
                public = path in self._page or path == _OPEN
                refusal = self._guard.judge(head, needs_token=not public)
                if refusal is not None:
                    writer.write(encode_error(refusal.status, refusal.text))
                    return
                asked = await _read_body(reader, head)
        except ProtocolError as error:
            writer.write(encode_error(error.status, error.public))
            return
        except asyncio.LimitOverrunError:
            writer.write(encode_error(431, "the head of the request is too long"))
            return
        if (live := _LIVE.fullmatch(head.target)) and head.method == b"GET":
            await self._stream(None if live[1] is None else live[1].decode("ascii"), reader, writer)
        elif head.method == b"GET" and (file := self._page.get(path)) is not None:
            writer.write(encode_answer(200, file.kind, file.body))
        elif head.method == b"POST" and path == _OPEN:
            # The ticket stands in the list of processes, for every user to see.
            if not is_of_this_user(writer.get_extra_info("peername")[1], self._port):
                writer.write(encode_error(403, "this page answers only its own user"))
            else:
                writer.write(self._redeem(asked))
        elif head.method == b"POST" and (action := ACTIONS.get(path)) is not None:
            writer.write(await self._act(partial(action, asked)))
        else:
            writer.write(encode_error(404, "there is nothing here"))

    def _redeem(self, asked: dict[str, object]) -> bytes:
        if self._ticket.redeem(asked.get("ticket")):
            return encode_json(200, {"token": self._token})
        return encode_error(401, "this link has been used: take the one that exeat ui printed")

    async def _act(self, action: Callable[[], dict[str, object]]) -> bytes:
        try:
            return encode_json(200, await self._in_thread(action))
        except ExeatError as error:
            return encode_error(409, str(error))
        except OSError as error:
            return encode_error(409, f"it did not work: {error.strerror or error}")

    async def _stream(self, name: str | None, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            watch = Watch(name, self._lists)
        except ConfigError as error:
            writer.write(encode_error(404, str(error)))
            return
        task = asyncio.current_task()
        assert task is not None, "a connection is served by a task"
        self._pages.append(task)
        left = asyncio.get_running_loop().create_task(reader.read(1))
        try:
            writer.write(begin_lines())
            while not left.done():
                if task not in self._pages[-_MAX_PAGES:]:
                    writer.write(encode_line({"elsewhere": True}) + LAST_CHUNK)
                    return
                for message in await self._in_thread(watch.look):
                    writer.write(encode_line(message))
                async with asyncio.timeout(_PATIENCE_S):
                    await writer.drain()
                await asyncio.wait((left,), timeout=TICK_S)
        finally:
            self._pages.remove(task)
            left.cancel()
            with suppress(asyncio.CancelledError, OSError):
                await left
            # It waits for a look that may still be under way.
            self._threads.submit(watch.close)

    async def _in_thread(self, job: Callable[[], _Result]) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, job)


async def _read_body(reader: asyncio.StreamReader, head: RequestHead) -> dict[str, object]:
    """The JSON object that came with the request; empty if none did. Raises ProtocolError."""
    if head.chunked or head.expect is not None:
        raise ProtocolError("send a Content-Length")
    if not head.length:
        return {}
    if head.length > _MAX_BODY:
        raise ProtocolError("the request is too long", status=413)
    try:
        asked = json.loads(await reader.readexactly(head.length))
    except (ValueError, RecursionError):
        raise ProtocolError("that is not JSON") from None
    if not isinstance(asked, dict):
        raise ProtocolError("that is not a JSON object")
    return asked


def serve_page(port: int, *, on_ready: Callable[[str], None], open_link: Callable[[str], None] | None) -> int:
    """Serve until a signal ends it. `on_ready` gets the link; `open_link` one that is good for one page."""
    return asyncio.run(_serve(port, on_ready, open_link))


async def _serve(port: int, on_ready: Callable[[str], None], open_link: Callable[[str], None] | None) -> int:
    ended = asyncio.Event()
    stolen = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)

    def on_theft() -> None:
        stolen.set()
        ended.set()

    token = secrets.token_urlsafe(32)
    ticket = Ticket(on_theft)
    server = PageServer(token, ticket)
    origin = f"http://{ADDRESS}:{await server.start(port)}"
    try:
        on_ready(f"{origin}/#{token}")
        if open_link is not None:
            await asyncio.to_thread(open_link, f"{origin}/#open={ticket.issue()}")
        await ended.wait()
    finally:
        await server.close()
    if stolen.is_set():
        raise ExeatError(_STOLEN)
    return 0
