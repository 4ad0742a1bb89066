"""Whatever ends, and whoever ends it, is on record once; without a record nothing goes out."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading

import pytest

from exeat.audit.journal import Journal
from tests.support.clients.talk import connect_dial, read_exactly, read_reply, socks_dial, socks_request
from tests.support.fixtures.gateways import StartScene, StartServing
from tests.support.gateways.gate import read_all, read_until
from tests.support.gateways.scene import Mark, Scene, wait_until
from tests.support.origins.raw import PING, PONG, RawOrigin, keep_silent


def reset(conn: socket.socket) -> None:
    """Close so that the other side gets a reset."""
    conn.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    conn.close()


def assert_one_end(scene: Scene, mark: Mark, *, upstream: bool) -> None:
    """One decision, one end, no connection left open towards the server, and no fault of ours."""
    scene.settle()
    seen = scene.since(mark)
    assert [decision["verdict"] for decision in seen.decisions] == ["allow"]
    assert len(seen.ends) == 1, "allowed, and its end is not on record"
    if upstream:
        assert scene.origin.closed.acquire(timeout=60), "the connection to the server was left open"
    assert scene.gate.gateway.counters.internal_errors == 0


def wish(scene: Scene, through: str) -> bytes:
    if through == "absolute":
        return b"GET http://good.test:%d/ HTTP/1.1\r\nHost: good.test:%d\r\n\r\n" % (scene.port, scene.port)
    if through == "connect":
        return b"CONNECT good.test:%d HTTP/1.1\r\nHost: good.test\r\n\r\n" % scene.port
    return b"\x05\x01\x00" + socks_request(b"good.test", scene.port)


@pytest.mark.threat("T-J5")
@pytest.mark.parametrize("how", ["reset", "close"])
@pytest.mark.parametrize("through", ["absolute", "connect", "socks"])
def test_a_client_that_leaves_while_its_request_is_being_dialled(
    through: str, how: str, start_scene: StartScene
) -> None:
    """What was allowed has an end on record, and the connection made for it is closed, though no one is left."""
    scene = start_scene()
    dialling, go_on = threading.Event(), asyncio.Event()

    async def wait() -> None:
        dialling.set()
        await go_on.wait()

    async def release() -> None:
        go_on.set()

    scene.dials.before = wait
    mark = scene.mark()
    conn = scene.gate.connect()
    conn.sendall(wish(scene, through))
    assert dialling.wait(60)
    if through == "socks":
        assert read_exactly(conn, 2) == b"\x05\x00"
    (session,) = scene.gate.gateway.state.sessions
    if how == "reset":
        reset(conn)
    else:
        conn.close()
    wait_until(lambda: session.client.closed if how == "reset" else session.client.eof, "the client to be gone")
    scene.gate.call(release())
    assert_one_end(scene, mark, upstream=through != "absolute")  # plain HTTP may keep its connection for the next one


@pytest.mark.threat("T-J5")
@pytest.mark.parametrize("stage", [b"\x05", b"\x05\x01", b"\x05\x01\x00", b"\x05\x01\x00\x05\x01\x00\x03\x09good"])
@pytest.mark.parametrize("how", ["reset", "close"])
def test_a_client_that_leaves_in_the_middle_of_a_socks_greeting(how: str, stage: bytes, scene: Scene) -> None:
    """One record of a request that was cut off, no connection, and no fault of ours."""
    conn = scene.gate.connect()
    conn.sendall(stage)
    if len(stage) >= 3:
        assert read_exactly(conn, 2) == b"\x05\x00"
    if how == "reset":
        reset(conn)
    else:
        conn.close()
    wait_until(lambda: scene.gate.gateway.counters.connections == 1, "the connection")
    scene.settle()
    assert [(line["verdict"], line["reason"]) for line in scene.gate.decisions()] == [("deny", "malformed")]
    assert scene.gate.gateway.counters.internal_errors == 0
    assert scene.dials.made == []


@pytest.mark.threat("T-J5")
@pytest.mark.parametrize("through", ["connect", "socks"])
@pytest.mark.parametrize("who", ["client resets", "client closes", "server closes"])
def test_a_tunnel_has_one_end_whoever_ends_it(who: str, through: str, start_scene: StartScene) -> None:
    """With the bytes that went each way."""
    scene = start_scene()
    mark = scene.mark()
    conn = scene.gate.connect()
    if through == "connect":
        assert connect_dial(conn, b"good.test:%d" % scene.port).status == 200
    else:
        assert socks_dial(conn, b"good.test", scene.port) == 0
    conn.sendall(PING)
    assert read_until(conn, b"\n") == PONG
    if who == "client resets":
        reset(conn)
    else:
        if who == "server closes":
            assert read_all(conn) == b""
        conn.close()
    assert_one_end(scene, mark, upstream=True)
    (end,) = scene.since(mark).ends
    assert (end["sent"], end["received"]) == (len(PING), len(PONG))


@pytest.mark.threat("T-J5")
@pytest.mark.parametrize("through", ["absolute", "connect", "socks"])
def test_stopping_the_gateway_leaves_an_end(through: str, start_scene: StartScene) -> None:
    """What is under way when the gateway stops is on record as ended by that."""
    scene = start_scene(handler=keep_silent)
    with scene.gate.connect() as conn:
        if through == "absolute":
            conn.sendall(wish(scene, through))
        elif through == "connect":
            assert connect_dial(conn, b"good.test:%d" % scene.port).status == 200
        else:
            assert socks_dial(conn, b"good.test", scene.port) == 0
        wait_until(lambda: scene.origin.connections == 1, "the connection")
        if through == "absolute":
            wait_until(lambda: scene.origin.received > 0, "the request")
        scene.gate.call(scene.gate.gateway.aclose())
        read_all(conn)
    lines = scene.gate.lines()
    assert [line["event"] for line in lines] == ["start", "decision", "end", "stop"]
    assert lines[2]["note"] == "gateway-stopped"


@pytest.mark.threat("T-J5")
def test_a_gateway_that_is_killed_has_written_what_it_allowed(serve: StartServing) -> None:
    """After SIGKILL in the middle of a tunnel the decision is in the file, whole."""
    with RawOrigin(keep_silent) as origin:
        server = serve("--allow", f"127.0.0.1:{origin.port}")
        with socket.create_connection(("127.0.0.1", server.port), 10) as conn:
            assert connect_dial(conn, b"127.0.0.1:%d" % origin.port).status == 200
            conn.sendall(PING)
            wait_until(lambda: origin.received == len(PING), "the bytes in the tunnel")
            server.process.kill()
            server.process.wait(20)
            assert read_all(conn) == b""
    decisions = [line for line in server.lines() if line["event"] == "decision"]
    assert [(line["verdict"], line["host"], line["port"]) for line in decisions] == [
        ("allow", "127.0.0.1", origin.port)
    ]


@pytest.mark.threat("T-J5")
@pytest.mark.parametrize("offer", [b"\x05\x01\x00", b"\x05\x01\xff", b"\x05\x00", b"\x05\x01\x02\x01\x02me\x05wrong"])
def test_refused_socks_credentials_are_on_record_when_the_client_hears_of_it(
    offer: bytes, start_scene: StartScene
) -> None:
    """One record, written by the time that the refusal is out, not when the client at last goes away."""
    scene = start_scene(credentials=("me", "pass"))
    mark = scene.mark()
    with scene.gate.connect() as conn:
        conn.sendall(offer)
        answer = read_all(conn)
        assert answer in (b"\x05\xff", b"\x05\x02\x01\x01")
        for _ in range(3):
            scene.gate.call(asyncio.sleep(0))
        decisions = scene.since(mark).decisions
    assert [decision["reason"] for decision in decisions] == ["credentials"]
    assert scene.dials.made == []


@pytest.mark.threat("T-J5")
def test_control_right_socks_credentials_open_the_tunnel(start_scene: StartScene) -> None:
    """The control for credentials: the right ones do, and leave the same pair of lines."""
    scene = start_scene(credentials=("me", "pass"))
    with scene.gate.connect() as conn:
        conn.sendall(b"\x05\x01\x02\x01\x02me\x04pass" + socks_request(b"good.test", scene.port))
        assert read_exactly(conn, 14)[:6] == b"\x05\x02\x01\x00\x05\x00"
        conn.sendall(PING)
        assert read_until(conn, b"\n") == PONG
    scene.settle()
    assert [line["event"] for line in scene.gate.lines()] == ["start", "decision", "end"]


@pytest.mark.threat("T-J5")
def test_without_a_log_nothing_goes_out(start_scene: StartScene) -> None:
    """On a full disk every request is refused, through every door, before anything is dialled."""
    scene = start_scene()
    full = scene.gate.gateway.state.journal
    assert isinstance(full, Journal)

    class Full:
        inline = True

        def write(self, lines: list[str], *, wait: bool) -> list[bytes]:
            raise OSError(28, "No space left on device")

    assert isinstance(full, Journal)
    real = full._sink
    full._sink = Full()  # type: ignore[assignment]
    try:
        with scene.gate.connect() as conn:
            conn.sendall(wish(scene, "absolute"))
            assert read_reply(conn).status == 503
        with scene.gate.connect() as conn:
            assert connect_dial(conn, b"good.test:%d" % scene.port).status == 503
        with scene.gate.connect() as conn:
            assert socks_dial(conn, b"good.test", scene.port) == 1
        assert scene.dials.made == []
    finally:
        full._sink = real
    with scene.gate.connect() as conn:
        conn.sendall(wish(scene, "absolute"))
        assert read_reply(conn).status == 200
