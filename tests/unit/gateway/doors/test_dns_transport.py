"""DNS over real sockets on loopback: clients that behave are answered, and the others hold nothing for long."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import dns.asyncquery
import dns.message
import dns.rcode
import pytest

from exeat.gateway.doors import dns as dns_door
from exeat.gateway.doors.dns import DnsDoor
from tests.unit.gateway.doors.dns_bench import LOOPS, Bench, opened, query_for, run, until


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """So long that no test passes because a connection that should have ended ran out of time instead."""
    monkeypatch.setattr(dns_door, "IDLE_S", 3_600.0)


@pytest.fixture
def audit(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


def bound(kind: socket.SocketKind, family: socket.AddressFamily = socket.AF_INET) -> socket.socket:
    sock = socket.socket(family, kind)
    sock.bind(("127.0.0.1" if family is socket.AF_INET else "::1", 0))
    return sock


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_a_real_client_over_udp_and_tcp(audit: Path, loop: str, family: socket.AddressFamily) -> None:
    """dnspython's client, both transports, both families; several queries on one connection."""

    async def main() -> None:
        async with opened(audit) as bench:
            udp, tcp = bound(socket.SOCK_DGRAM, family), bound(socket.SOCK_STREAM, family)
            host, udp_port = udp.getsockname()[:2]
            tcp_port = tcp.getsockname()[1]
            await bench.door.start([udp], [tcp])
            for _ in range(3):
                reply = await dns.asyncquery.udp(query_for("good.test"), host, timeout=10, port=udp_port)
                assert str(reply.answer[0][0]) == "198.18.0.1"
            reply = await dns.asyncquery.udp(query_for("evil.test"), host, timeout=10, port=udp_port)
            assert reply.rcode() == dns.rcode.NXDOMAIN
            reply = await dns.asyncquery.tcp(query_for("good.test", "AAAA"), host, timeout=10, port=tcp_port)
            assert str(reply.answer[0][0]) == "fd65:7865:6174::1"
            reader, writer = await asyncio.open_connection(host, tcp_port)
            queries = [query_for("good.test"), query_for("evil.test"), query_for("good.test", "TXT")]
            writer.write(b"".join(framed(each) for each in queries))
            replies = [await read_reply(reader) for _ in queries]
            assert [reply.rcode() for reply in replies] == [0, dns.rcode.NXDOMAIN, 0]
            assert all(query.is_response(reply) for query, reply in zip(queries, replies, strict=True))
            await bench.door.close()
            assert await reader.read() == b""
            await hang_up(writer)
            assert (udp.fileno(), tcp.fileno()) == (-1, -1)

    run(main, loop)


def framed(query: dns.message.Message) -> bytes:
    data = query.to_wire()
    return len(data).to_bytes(2) + data


async def read_reply(reader: asyncio.StreamReader) -> dns.message.Message:
    size = int.from_bytes(await reader.readexactly(2))
    return dns.message.from_wire(await reader.readexactly(size))


async def hang_up(writer: asyncio.StreamWriter) -> None:
    writer.close()
    try:
        await writer.wait_closed()
    except OSError:
        pass  # reset by the door, which is what some tests are about


async def read_to_end(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""


@asynccontextmanager
async def listening(bench: Bench) -> AsyncIterator[int]:
    tcp = bound(socket.SOCK_STREAM)
    port: int = tcp.getsockname()[1]
    await bench.door.start([], [tcp])
    yield port


@pytest.mark.parametrize("loop", LOOPS)
def test_a_query_in_single_bytes_is_read(audit: Path, loop: str) -> None:
    """TCP has no message borders."""

    async def main() -> None:
        async with opened(audit) as bench, listening(bench) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for byte in framed(query_for("good.test")):
                writer.write(bytes((byte,)))
                await asyncio.sleep(0.001)
            assert str((await read_reply(reader)).answer[0][0]) == "198.18.0.1"
            await hang_up(writer)

    run(main, loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_client_that_has_finished_sending_gets_its_answers(audit: Path, loop: str) -> None:
    """Half-closed, as netcat does it."""

    async def main() -> None:
        async with opened(audit) as bench, listening(bench) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(framed(query_for("good.test")) * 2)
            writer.write_eof()
            for _ in range(2):
                assert (await read_reply(reader)).answer
            assert await reader.read() == b""
            await hang_up(writer)

    run(main, loop)


@pytest.mark.parametrize(
    "sent",
    [b"\xff\xff", b"\x10\x01", b"\0\0", b"\0\x05hello", framed(dns.message.make_response(query_for("good.test")))],
    ids=["longest", "too long", "empty", "not DNS", "an answer"],
)
@pytest.mark.parametrize("loop", LOOPS)
def test_a_stream_that_makes_no_sense_is_ended(audit: Path, loop: str, sent: bytes) -> None:
    """Too long to be a query, or no query: nothing is answered, and nothing is waited for."""

    async def main() -> None:
        async with opened(audit) as bench, listening(bench) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            assert await read_to_end(reader) == b""
            await hang_up(writer)

    run(main, loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_connection_has_so_many_queries(audit: Path, loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last answer still comes."""
    monkeypatch.setattr(dns_door, "MAX_QUERIES", 3)

    async def main() -> None:
        async with opened(audit) as bench, listening(bench) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(framed(query_for("good.test")) * 3)
            for _ in range(3):
                assert (await read_reply(reader)).answer
            assert await read_to_end(reader) == b""
            await hang_up(writer)

    run(main, loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_connections_are_bounded_and_given_back(audit: Path, loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One over the bound is cut at once; when another ends there is room again."""
    monkeypatch.setattr(dns_door, "MAX_CONNECTIONS", 2)

    async def main() -> None:
        async with opened(audit) as bench, listening(bench) as port:
            open_ones = []
            for _ in range(2):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(framed(query_for("good.test")))
                assert (await read_reply(reader)).answer
                open_ones.append(writer)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            assert await read_to_end(reader) == b""
            await hang_up(writer)
            await hang_up(open_ones.pop())
            await until(lambda: len(bench.door._streams) == 1)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(framed(query_for("good.test")))
            assert (await read_reply(reader)).answer
            for each in (writer, *open_ones):
                await hang_up(each)

    run(main, loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_who_sends_single_bytes_or_nothing_is_cut_off(audit: Path, loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes that complete no query put nothing off."""
    monkeypatch.setattr(dns_door, "IDLE_S", 0.2)

    async def main() -> None:
        async with opened(audit) as bench, listening(bench) as port:
            silent = await asyncio.open_connection("127.0.0.1", port)
            slow = await asyncio.open_connection("127.0.0.1", port)

            async def trickle() -> None:
                slow[1].write(b"\x0f\xff")
                while not slow[1].is_closing():
                    slow[1].write(b"x")
                    await asyncio.sleep(0.02)

            task = asyncio.create_task(trickle())
            assert await read_to_end(silent[0]) == b""
            assert await read_to_end(slow[0]) == b""
            task.cancel()
            for _, writer in (silent, slow):
                await hang_up(writer)
            await until(lambda: not bench.door._streams)

    run(main, loop)


@asynccontextmanager
async def narrow(bench: Bench) -> AsyncIterator[socket.socket]:
    """A connection on which the kernel keeps little, so that answers soon find no room."""
    tcp = bound(socket.SOCK_STREAM)
    tcp.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    await bench.door.start([], [tcp])
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        await bench.state.loop.sock_connect(client, tcp.getsockname())
        yield client


@pytest.mark.parametrize("loop", LOOPS)
def test_who_takes_no_answers_is_cut_off(audit: Path, loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The door stops reading, keeps no more than one piece of input, and ends it when the time is over."""
    monkeypatch.setattr(dns_door, "IDLE_S", 0.5)
    monkeypatch.setattr(dns_door, "MAX_QUERIES", 10**9)

    async def main() -> None:
        async with opened(audit) as bench, narrow(bench) as client:
            flood = framed(query_for("good.test")) * 1_000
            kept = 0
            with pytest.raises(ConnectionError):
                while True:
                    await bench.state.loop.sock_sendall(client, flood)
                    kept = max(kept, *(len(vars(each)["_reader"]._buffer) for each in bench.door._streams), 0)
            assert kept <= 512 * 1024
            await until(lambda: not bench.door._streams)

    run(main, loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_who_takes_answers_late_gets_them_all(audit: Path, loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was asked while the door waited is answered when it goes on."""
    monkeypatch.setattr(dns_door, "MAX_QUERIES", 10**9)
    query = query_for("good.test")
    count = 5_000

    async def main() -> None:
        async with opened(audit) as bench, narrow(bench) as client:
            sending = asyncio.create_task(bench.state.loop.sock_sendall(client, framed(query) * count))
            await until(lambda: any(vars(each)["_protocol"]._paused for each in bench.door._streams))
            expected = bench.door.answer(query.to_wire(), tcp=True)
            assert expected is not None
            left = count * (2 + len(expected))
            while left:
                data = await bench.state.loop.sock_recv(client, 65_536)
                assert data
                left -= len(data)
            await sending

    run(main, loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_strangers_datagrams_do_not_end_the_socket(audit: Path, loop: str) -> None:
    """Junk, responses, and a client that is gone before its answer: the next query is answered."""

    async def main() -> None:
        async with opened(audit) as bench:
            udp = bound(socket.SOCK_DGRAM)
            where = udp.getsockname()
            await bench.door.start([udp], [])
            for size in (0, 1, 11, 12, 500, 10_000):  # all of it within what the kernel keeps for a socket
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as gone:
                    for data in (bytes(size), b"\xff" * size, query_for("good.test").to_wire()):
                        gone.sendto(data, where)
            reply = await dns.asyncquery.udp(query_for("good.test"), where[0], timeout=10, port=where[1])
            assert reply.answer

    run(main, loop)


def test_a_defect_stays_in_its_query(audit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is counted, it gets no answer, and the socket lives on."""

    async def main() -> None:
        bench = Bench(audit, ["good.test"], [], 8)
        udp = bound(socket.SOCK_DGRAM)
        where = udp.getsockname()
        await bench.door.start([udp], [])
        with monkeypatch.context() as patched:

            def fail(_: object) -> None:
                raise RuntimeError("a defect")

            patched.setattr(dns_door, "parse_query", fail)
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
                client.sendto(query_for("good.test").to_wire(), where)
                await until(lambda: bench.state.counters.internal_errors == 1)
        reply = await dns.asyncquery.udp(query_for("good.test"), where[0], timeout=10, port=where[1])
        assert reply.answer
        await bench.door.close()
        await bench.journal.aclose()

    run(main)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_start_that_fails_leaves_nothing_open(audit: Path, loop: str) -> None:
    """A socket of the wrong kind: all of them are closed."""

    async def main() -> None:
        async with opened(audit) as bench:
            udp, tcp = bound(socket.SOCK_DGRAM), bound(socket.SOCK_STREAM)
            wrong = bound(socket.SOCK_DGRAM)
            with pytest.raises((ValueError, OSError)):
                await bench.door.start([udp], [tcp, wrong])
            await asyncio.sleep(0)
            assert [each.fileno() for each in (udp, tcp, wrong)] == [-1, -1, -1]

    run(main, loop)


def open_here() -> set[int]:
    """By inode: a number may be another socket's by now."""
    return {each.stat().st_ino for each in Path("/proc/self/fd").iterdir() if each.exists()}


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("turns", range(5))
def test_a_start_that_is_cancelled_leaves_nothing_open(audit: Path, loop: str, turns: int) -> None:
    """A claim is given up just when its gateway starts: no one else would ever close these."""

    async def main() -> None:
        async with opened(audit) as bench:
            socks = [bound(socket.SOCK_DGRAM), bound(socket.SOCK_DGRAM), bound(socket.SOCK_STREAM)]
            inodes = {os.fstat(each.fileno()).st_ino for each in socks}
            starting = asyncio.create_task(bench.door.start(socks[:2], socks[2:]))
            for _ in range(turns):
                await asyncio.sleep(0)
            starting.cancel()
            await asyncio.wait([starting])
            await bench.door.close()
            if turns == 0:  # it had not begun
                for each in socks:
                    each.close()
            for _ in range(5):  # what is being closed takes a turn or two
                await asyncio.sleep(0)
            assert not inodes & open_here()

    run(main, loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_many_queries_at_once_leave_room_for_others(audit: Path, loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some are answered in each turn of the loop, and all in the end."""
    answered = [0]
    answer = DnsDoor.answer

    def count(door: DnsDoor, data: bytes, *, tcp: bool) -> bytes | None:
        answered[0] += 1
        return answer(door, data, tcp=tcp)

    monkeypatch.setattr(DnsDoor, "answer", count)

    async def main() -> None:
        async with opened(audit) as bench, listening(bench) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(framed(query_for("good.test")) * 100)
            most = before = 0
            while answered[0] < 100:
                await asyncio.sleep(0)
                most, before = max(most, answered[0] - before), answered[0]
            for _ in range(100):
                assert (await read_reply(reader)).answer
            assert most <= 8
            await hang_up(writer)

    run(main, loop)
