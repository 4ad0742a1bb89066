"""`python -m bench.floods`: how long a small GET takes while others send what costs a gateway the most.

Each flood runs next to one client that asks for a small answer over a kept connection, again and again. What is told is
its median, alone and with the flood. The aim: at most 20 times as long as alone, and at most 50 ms.
"""

import argparse
import asyncio
import itertools
import multiprocessing
import os
import select
import signal
import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import uvloop

from bench.process import ROOT, free_port, running

MOST_TIMES, MOST_MS = 20.0, 50.0
_SMALL = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
_POST = b"POST http://127.0.0.1:%d/ HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nTransfer-Encoding: chunked\r\n\r\n"
_PIECE_BYTES = 1 << 20
_START_S = 0.5  # for a flood to be in full flow


@dataclass(frozen=True, slots=True)
class Flood:
    """`chunk` is sent without end by so many clients, or by the server to so many that ask for it."""

    name: str
    chunk: bytes
    connections: int = 1
    from_server: bool = False
    head: Callable[[int], bytes] = lambda port: _POST % (port, port)


def _pipelined(port: int) -> bytes:
    return b""


def _tunnel(port: int) -> bytes:
    return b"CONNECT 127.0.0.1:%d HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n" % (port, port)


def _counted(port: int) -> bytes:
    return b"POST http://127.0.0.1:%d/ HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Length: %d\r\n\r\n" % (
        port, port, 1 << 50,
    )  # fmt: skip


_BLOCK = b"%x\r\n%b\r\n" % (65_536, bytes(65_536))
FLOODS = (
    Flood("chunks with an empty extension", b"1;\r\nx\r\n"),
    Flood("chunks of one byte", b"1\r\nx\r\n", 4),
    Flood("chunks with extensions", b"1;a=b\r\nx\r\n", 4),
    Flood("large chunks", _BLOCK, 4),
    Flood("a counted body", bytes(65_536), 4, head=_counted),
    Flood("a tunnel", bytes(65_536), 4, head=_tunnel),
    Flood("refused requests, pipelined", b"GET http://no.test/ HTTP/1.1\r\nHost: no.test\r\n\r\n", 4, head=_pipelined),
    Flood("empty lines", b"\r\n", 4, head=_pipelined),
    Flood("a server's chunks with an empty extension", b"1;\r\nx\r\n", from_server=True),
    Flood("a server's chunks of one byte", b"1\r\nx\r\n", 4, from_server=True),
    Flood("a server's large chunks", _BLOCK, 4, from_server=True),
)


# The server: small answers, floods, and a sink for what clients send


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            line = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n", 1)[0]
            if line.startswith(b"GET /flood/"):
                await _send_flood(writer, FLOODS[int(line.split()[1].rpartition(b"/")[2])].chunk)
            elif line.startswith(b"GET /small"):
                writer.write(_SMALL)
            else:
                while await reader.read(_PIECE_BYTES):
                    pass
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError):
        pass
    finally:
        writer.close()


async def _send_flood(writer: asyncio.StreamWriter, chunk: bytes) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    piece = chunk * max(1, _PIECE_BYTES // len(chunk))
    while True:
        writer.write(piece)
        await writer.drain()


def _run_origin(port: int) -> None:
    async def main() -> None:
        server = await asyncio.start_server(_serve, "127.0.0.1", port, limit=_PIECE_BYTES)
        await server.serve_forever()

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    uvloop.run(main())


# The clients


def _run_flood(number: int, proxy: int, origin: int) -> None:
    """One connection of a flood. Not heard of again once it is refused, which is as good an end as any."""
    flood = FLOODS[number]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(40)  # as low as can be: the gateway is to be what is short of time, not the machine
    piece = flood.chunk * max(1, _PIECE_BYTES // len(flood.chunk))
    while True:
        try:
            with socket.create_connection(("127.0.0.1", proxy)) as conn:
                if flood.from_server:
                    conn.sendall(
                        b"GET http://127.0.0.1:%d/flood/%d HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n"
                        % (origin, number, origin)
                    )
                    while conn.recv(_PIECE_BYTES):
                        pass
                else:
                    conn.sendall(flood.head(origin))
                    _exchange_for_ever(conn, piece)
        except OSError:
            time.sleep(0.01)


def _exchange_for_ever(conn: socket.socket, piece: bytes) -> None:
    """Send without end, and take what comes, so that neither side waits for the other."""
    conn.setblocking(False)
    rest = memoryview(piece)
    while True:
        readable, writable, _ = select.select([conn], [conn], [])
        if readable and not conn.recv(_PIECE_BYTES):
            return
        if writable:
            rest = rest[conn.send(rest) :] or memoryview(piece)


def _latencies(proxy: int, origin: int, seconds: float) -> list[float]:
    request = b"GET http://127.0.0.1:%d/small HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n" % (origin, origin)
    taken: list[float] = []
    with socket.create_connection(("127.0.0.1", proxy)) as conn:
        conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        ends = time.monotonic() + seconds
        while len(taken) < 3 or time.monotonic() < ends:
            began = time.perf_counter()
            conn.sendall(request)
            got = b""
            while not got.endswith(b"hello"):
                data = conn.recv(65_536)
                if not data:
                    raise ConnectionError("the gateway has closed the connection")
                got += data
            taken.append((time.perf_counter() - began) * 1e3)
            time.sleep(0.002)
    return taken


@contextmanager
def _children(target: Callable[..., None], *calls: tuple[int, ...]) -> Iterator[None]:
    started = [multiprocessing.get_context("spawn").Process(target=target, args=call, daemon=True) for call in calls]
    for child in started:
        child.start()
    try:
        yield
    finally:
        for child in started:
            child.kill()
            child.join()


def measure(seconds: float, chosen: str) -> int:
    """Print a table. Returns the number of floods that kept the others waiting for too long."""
    origin, sink, proxy = free_port(), free_port(), free_port()  # what is measured must not wait for the flood's server
    missed = 0
    with TemporaryDirectory(prefix="floods-") as home, _children(_run_origin, (origin,), (sink,)):
        env = {
            "PROXY_PORT": str(proxy),
            "EXEAT_BIND": "127.0.0.1",
            "EXEAT_AUDIT": f"{home}/audit.jsonl",
            "PROXY_ALLOWLIST": f"127.0.0.1:{origin},127.0.0.1:{sink}",
        }
        command = [str(ROOT / ".venv" / "bin" / "exeat"), "serve"]
        with running(command, proxy, Path(home) / "log", env):
            time.sleep(_START_S)
            idle = statistics.median(_latencies(proxy, origin, seconds))
            print("| flood | connections | p50 ms | times as long as alone |\n|---|---:|---:|---:|")
            print(f"| none | | {idle:.2f} | |")
            for number, flood in enumerate(FLOODS):
                if chosen not in flood.name:
                    continue
                with _children(_run_flood, *itertools.repeat((number, proxy, sink), flood.connections)):
                    time.sleep(2 * _START_S)
                    loaded = statistics.median(_latencies(proxy, origin, seconds))
                missed += loaded > MOST_MS or loaded > MOST_TIMES * idle
                print(f"| {flood.name} | {flood.connections} | {loaded:.2f} | {loaded / idle:.1f} |", flush=True)
                time.sleep(_START_S)
    return missed


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.floods", description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a measurement (default: 2)")
    parser.add_argument("--only", default="", help="floods with this in their name")
    options = parser.parse_args(argv)
    for sign in (signal.SIGINT, signal.SIGTERM):  # both unwind, and so stop what was started
        signal.signal(sign, signal.default_int_handler)
    missed = measure(options.seconds, options.only)
    print(f"{missed} over {MOST_TIMES:.0f} times or {MOST_MS:.0f} ms")
    return min(missed, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
