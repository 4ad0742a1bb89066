"""B9: a gateway inside someone's program."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
import uvloop

import exeat
from exeat.gateway.flow.relay import Tunnel
from exeat.gateway.flow.streams import Streams
from tests.support.clients.answers import parse_answer
from tests.support.origins.raw import RawOrigin, keep_silent

T = TypeVar("T")
Run = Callable[[Callable[[], Awaitable[T]]], T]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Callable[[], Awaitable[Any]]], Any]:
    """Run a coroutine function to its end, on either loop. A test that hangs fails."""
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def start(main: Callable[[], Awaitable[Any]]) -> Any:
        async def bounded() -> Any:
            async with asyncio.timeout(20):
                return await main()

        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(bounded())

    return start


def policy_for(*origins: RawOrigin, name: str = "good.test") -> exeat.Policy:
    return exeat.make_policy([f"{name}:{origin.port}" for origin in origins], hosts={name: "127.0.0.1"})


async def ask(gateway: exeat.Gateway, host: str, port: int) -> int:
    """The status of one GET."""
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(f"GET http://{host}:{port}/ HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode())
    raw = await reader.read()
    writer.close()
    return parse_answer(raw).status


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - what is waited for happens in another thread
        await asyncio.sleep(0.01)


async def open_tunnel(gateway: exeat.Gateway, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(b"CONNECT good.test:%d HTTP/1.1\r\nHost: good.test\r\n\r\n" % port)
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
    return reader, writer


def test_a_gateway_runs_for_as_long_as_its_block(run: Run[None]) -> None:
    """Port 0 picks a free one; requests are decided; after the block no one listens."""

    async def main() -> None:
        with RawOrigin() as origin:
            async with exeat.Gateway(policy_for(origin)) as gateway:
                assert gateway.port > 0
                assert gateway.url == f"http://127.0.0.1:{gateway.port}"
                assert await ask(gateway, "good.test", origin.port) == 200
                assert await ask(gateway, "evil.test", origin.port) == 403
                port = gateway.port
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)

    run(main)


def test_the_environment_for_a_child_has_all_eight_names(run: Run[None]) -> None:
    """In both cases, since programs disagree; NO_PROXY is there and empty, so an inherited one does not count."""

    async def main() -> None:
        async with exeat.Gateway(exeat.make_policy(), credentials=("us er", "p@ss:word/%")) as gateway:
            environ = gateway.environ()
            names = {"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"}
            assert set(environ) == names | {name.lower() for name in names}
            assert environ["NO_PROXY"] == environ["no_proxy"] == ""
            proxies = {value for name, value in environ.items() if "no_" not in name.lower()}
            assert proxies == {f"http://us%20er:p%40ss%3Aword%2F%25@127.0.0.1:{gateway.port}"}
            assert "p@ss" not in repr(gateway.state.credentials)
            assert gateway.url_without_login == f"http://127.0.0.1:{gateway.port}"

    run(main)


def test_events_come_as_things_happen_and_end_with_the_gateway(run: Run[None]) -> None:
    """A decision and an end for what is allowed, a decision for what is not, then the stop, then no more."""

    async def main() -> None:
        with RawOrigin() as origin:
            async with exeat.Gateway(policy_for(origin), sandbox="box") as gateway:
                events = gateway.events()
                assert await ask(gateway, "good.test", origin.port) == 200
                decision, end = await anext(events), await anext(events)
                assert await ask(gateway, "evil.test", origin.port) == 403
                denial = await anext(events)
            rest = [event["event"] async for event in events]
        assert (decision["event"], decision["verdict"], decision["host"]) == ("decision", "allow", "good.test")
        assert (end["event"], end["status"], end["sandbox"]) == ("end", 200, "box")
        assert (denial["verdict"], denial["reason"]) == ("deny", "not-listed")
        assert rest == ["stop"]

    run(main)


def test_a_consumer_of_events_that_sleeps_holds_nothing_up(run: Run[None]) -> None:
    """The oldest events are dropped and counted; requests are served at their pace."""

    async def main() -> None:
        async with exeat.Gateway(exeat.make_policy()) as gateway:
            events = gateway.events(max_queued=5)
            for _ in range(50):
                assert await ask(gateway, "evil.test", 80) == 403
            assert await anext(events) == {"event": "gap", "lost": 45}
            assert (await anext(events))["event"] == "decision"

    run(main)


def test_two_gateways_share_nothing(run: Run[None], tmp_path: Path) -> None:
    """G4 in one process: policies, logs, counters and a stop of the one are no concern of the other."""

    async def main() -> None:
        with RawOrigin() as origin:
            one = exeat.Gateway(policy_for(origin, name="one.test"), audit=str(tmp_path / "one.jsonl"))
            two = exeat.Gateway(policy_for(origin, name="two.test"), audit=str(tmp_path / "two.jsonl"))
            async with two:
                async with one:
                    assert one.port != two.port
                    for gateway, mine, other in ((one, "one.test", "two.test"), (two, "two.test", "one.test")):
                        assert await ask(gateway, mine, origin.port) == 200
                        assert await ask(gateway, other, origin.port) == 403
                    await one.set_policy(exeat.make_policy())
                    assert await ask(one, "one.test", origin.port) == 403
                    assert one.counters.connections == 3
                assert await ask(two, "two.test", origin.port) == 200
                assert two.counters.connections == 3
        assert "one.jsonl" in str(tmp_path / "one.jsonl")
        assert "two.test" not in (tmp_path / "one.jsonl").read_text().replace('"host":"two.test"', "")

    run(main)


def test_a_port_in_use_is_an_error(run: Run[None], tmp_path: Path) -> None:
    """B9: StartError with the address, and the log is let go; never a silent run without a proxy."""

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as holder:
            port = holder.getsockname()[1]
            gateway = exeat.Gateway(exeat.make_policy(), port=port, audit=str(tmp_path / "a.jsonl"))
            with pytest.raises(exeat.StartError, match=f"cannot listen on 127.0.0.1:{port}"):
                await gateway.start()
        async with exeat.Gateway(exeat.make_policy(), audit=str(tmp_path / "a.jsonl")):
            pass

    run(main)


def test_a_port_that_another_listens_on_first_is_an_error(run: Run[None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Two programs may bind it, and one of them may listen. The socket of the other is closed."""
    listen = Streams.listen
    bound: list[socket.socket] = []

    async def main() -> None:
        with socket.socket() as holder:
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind(("127.0.0.1", 0))

            async def listen_late(streams: Streams, sock: socket.socket, factory: Any) -> Any:
                holder.listen()
                bound.append(sock)
                return await listen(streams, sock, factory)

            monkeypatch.setattr(Streams, "listen", listen_late)
            gateway = exeat.Gateway(exeat.make_policy(), port=holder.getsockname()[1])
            with pytest.raises(exeat.StartError, match="cannot listen on"):
                await gateway.start()
        assert [sock.fileno() for sock in bound] == [-1]

    run(main)


def test_a_log_that_cannot_be_opened_is_an_error(run: Run[None], tmp_path: Path) -> None:
    """F3: the same for the log."""

    async def main() -> None:
        with pytest.raises(exeat.StartError, match="its folder does not exist"):
            await exeat.Gateway(exeat.make_policy(), audit=str(tmp_path / "no" / "a.jsonl")).start()

    run(main)


def test_set_policy_cuts_what_it_revokes_and_counts_it(run: Run[None]) -> None:
    """E3: two tunnels go, one stays, and the number comes back."""

    async def main() -> None:
        with RawOrigin(keep_silent) as gone, RawOrigin(keep_silent) as stays:
            async with exeat.Gateway(policy_for(gone, stays)) as gateway:
                tunnels = [await open_tunnel(gateway, origin.port) for origin in (gone, gone, stays)]
                assert await gateway.set_policy(policy_for(stays)) == 2
                for reader, _ in tunnels[:2]:
                    with contextlib.suppress(ConnectionResetError):
                        assert await reader.read() == b""
                tunnels[2][1].write(b"\x80")
                await until(lambda: stays.received == 1)
                assert await gateway.set_policy(policy_for(stays)) == 0
                for _, writer in tunnels:
                    writer.close()

    run(main)


def test_closing_twice_and_before_the_start_is_harmless(run: Run[None]) -> None:
    """What a program's own clean-up does must not fail."""

    async def main() -> None:
        gateway = exeat.Gateway(exeat.make_policy())
        await gateway.aclose()
        with pytest.raises(RuntimeError, match="not been started"):
            _ = gateway.policy
        await gateway.start()
        await gateway.aclose()
        await gateway.aclose()

    run(main)


@pytest.mark.parametrize("what", ["url", "url_without_login", "port", "environ"])
def test_where_it_listens_is_not_known_before_the_start(what: str) -> None:
    gateway = exeat.Gateway(exeat.make_policy())
    with pytest.raises(RuntimeError, match=r"does not listen yet: await gateway\.start\(\), or use `async with`"):
        getattr(gateway, what)() if what == "environ" else getattr(gateway, what)


def test_the_package_lists_its_names() -> None:
    """Also those that are loaded when they are first used."""
    program = "import exeat, sys; print(set(exeat.__all__) <= set(dir(exeat)), 'exeat.gateway' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=40)
    assert done.stdout == "True False\n"


def test_a_gateway_closes_with_connections_open(run: Run[None]) -> None:
    """Idle clients, half a head, an open tunnel: the block ends, and every one of them sees its end."""

    async def main() -> None:
        with RawOrigin(keep_silent) as origin:
            async with exeat.Gateway(policy_for(origin)) as gateway:
                tunnel = await open_tunnel(gateway, origin.port)
                idle = await asyncio.open_connection("127.0.0.1", gateway.port)
                half = await asyncio.open_connection("127.0.0.1", gateway.port)
                half[1].write(b"GET http://good")
                await until(lambda: gateway.counters.open_connections == 3 and origin.connections == 1)
            for reader, writer in (tunnel, idle, half):
                with contextlib.suppress(ConnectionResetError):
                    await reader.read()
                writer.close()
            assert gateway.counters.open_connections == 0

    run(main)


def test_a_long_transfer_on_either_loop(run: Run[None]) -> None:
    """The kernel's path through a tunnel works on the stock loop too: 20 MB there and back."""
    size = 20_000_000

    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        while data := conn.recv(262_144):
            conn.sendall(data)
        conn.shutdown(socket.SHUT_WR)

    async def main() -> None:
        with RawOrigin(handle) as origin:
            async with exeat.Gateway(policy_for(origin)) as gateway:
                reader, writer = await open_tunnel(gateway, origin.port)

                async def send() -> None:
                    for _ in range(size // 100_000):
                        writer.write(b"\x80" * 100_000)
                        await writer.drain()
                    writer.write_eof()

                sending = asyncio.create_task(send())
                received = 0
                while data := await reader.read(262_144):
                    received += len(data)
                await sending
                writer.close()
                assert received == size

    run(main)


def test_nothing_is_left_running(run: Run[None]) -> None:
    """No task and no thread outlives the block."""
    before = threading.active_count()

    async def main() -> None:
        with RawOrigin() as origin:
            async with exeat.Gateway(policy_for(origin)) as gateway:
                assert await ask(gateway, "good.test", origin.port) == 200
        await asyncio.sleep(0)  # a task that was cancelled ends in its next turn
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(main)
    assert threading.active_count() <= before + 3  # the server of this test may be closing its own


def test_the_public_names_are_all_there() -> None:
    """`exeat.X` for everything that is promised, and an error with the name for what is not."""
    for name in exeat.__all__:
        assert getattr(exeat, name) is not None
    with pytest.raises(AttributeError, match="nonsense"):
        _ = exeat.nonsense


def test_a_tunnel_that_is_over_leaves_nothing_for_the_collector_of_cycles(run: Run[None]) -> None:
    """Whatever was made for it is freed as it ends, with the collector switched off."""

    async def main() -> None:
        with RawOrigin(keep_silent) as origin:
            async with exeat.Gateway(policy_for(origin)) as gateway:
                for _ in range(3):
                    _, writer = await open_tunnel(gateway, origin.port)
                    writer.close()
                await until(lambda: not gateway.state.sessions)
                await until(lambda: not any(isinstance(each, Tunnel) for each in gc.get_objects()))

    gc.collect()
    gc.disable()
    try:
        run(main)
    finally:
        gc.enable()


def test_a_client_that_has_said_nothing_does_not_hold_up_the_end(run: Run[None]) -> None:
    """It has no task yet; draining closes it at once instead of waiting for its first byte."""

    async def main() -> None:
        gateway = exeat.Gateway(exeat.make_policy())
        await gateway.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        await until(lambda: bool(gateway.state.sessions))
        closing = asyncio.create_task(gateway.aclose(drain_s=60))  # the test's own limit is 20
        assert await reader.read() == b""
        writer.close()
        await closing

    run(main)
