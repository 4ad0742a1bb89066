"""A policy that is empty, broken or being replaced never lets more out than a good one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from exeat.errors import ConfigError
from exeat.policy import parse_document
from exeat.sources import RuleSources, load_document, make_policy
from tests.support.clients.talk import connect_dial, read_exactly, read_reply, socks_dial
from tests.support.fixtures.gateways import StartScene, StartServing
from tests.support.gateways.doors import OUTER, Door, Verdict, assert_verdict
from tests.support.gateways.gate import read_all, read_until
from tests.support.gateways.scene import Scene, wait_until
from tests.support.origins.raw import PING, PONG, RawOrigin, keep_silent

pytestmark = pytest.mark.threat("T-A8")

every_outer_door = pytest.mark.parametrize("door", OUTER, ids=str)

BROKEN = {
    "cut off": '{"allow": ["good.test"',
    "not JSON": "{allow: good.test}",
    "a number": "7",
    "null": "null",
    "a string": '"good.test"',
    "an unknown key": '{"allow": ["good.test"], "allowed": ["evil.test"]}',
    "a rule of another type": '{"allow": [7]}',
    "rules of another type": '{"allow": "good.test"}',
    "one rule that is wrong": '{"allow": ["good.test", "bad rule!"]}',
    "a key given twice": '{"allow": ["good.test"], "allow": ["*.evil.test"]}',
    "a wildcard over everything": '{"allow": ["*"]}',
}


@every_outer_door
def test_an_empty_policy_allows_nothing(door: Door, start_scene: StartScene) -> None:
    """No rules is no way out. The control is the same question after a rule was given."""
    scene = start_scene([])
    for host in ("good.test", "evil.test", "127.0.0.1", "localhost"):
        assert_verdict(door, scene, host, Verdict.DENY)
    scene.gate.set_policy(make_policy([f"good.test:{scene.port} private", f"127.0.0.1:{scene.port}"]))
    assert_verdict(door, scene, "127.0.0.1", Verdict.ALLOW)
    if door.name != "socks-address":
        assert_verdict(door, scene, "good.test", Verdict.ALLOW)


@pytest.mark.parametrize("text", ["{}", '{"allow": []}', "", "# nothing\n", "allow = []\n"])
def test_an_empty_document_is_a_policy_without_rules(text: str, tmp_path: Path) -> None:
    """An empty list is read as what it is, and decides nothing in anybody's favour."""
    file = tmp_path / ("policy.json" if text.startswith("{") else "policy.toml")
    file.write_text(text)
    policy = RuleSources(files=(str(file),)).load().policy
    assert policy.rules == ()


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_document_is_refused_whole(text: str, tmp_path: Path) -> None:
    """There is no partial policy: one fault, and the rules next to it do not count either."""
    file = tmp_path / "policy.json"
    file.write_text(text)
    with pytest.raises(ConfigError):
        load_document(str(file))
    control = tmp_path / "good.json"
    control.write_text('{"allow": ["good.test"]}')
    assert len(load_document(str(control)).rules) == 1


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing, a folder, a FIFO, without rights, too large, not UTF-8: never an empty policy."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    latin = tmp_path / "latin.json"
    latin.write_bytes(b'{"allow": ["good.test", "\xff.test"]}')
    for path in (tmp_path / "missing.json", tmp_path, pipe, latin):
        with pytest.raises(ConfigError):
            RuleSources(allow=("good.test",), files=(str(path),)).load()
    locked = tmp_path / "locked.json"
    locked.write_text('{"allow": ["good.test"]}')
    assert len(load_document(str(locked)).rules) == 1
    locked.chmod(0)
    if os.access(locked, os.R_OK):  # a privileged user may read it all the same
        real_open = os.open

        def refuse(path: str, flags: int, *more: int) -> int:
            if str(path) == str(locked):
                raise PermissionError(13, "Permission denied")
            return real_open(path, flags, *more)

        monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(ConfigError):
        RuleSources(allow=("good.test",), files=(str(locked),)).load()


def test_an_unrelated_edit_keeps_the_meaning() -> None:
    """Comments and order are not part of a policy, so a reload after such an edit changes nothing."""
    one = parse_document('allow = ["good.test", "b.test"]\n', "a.toml")
    two = parse_document('# a comment\nallow = ["b.test", "good.test"]\n', "a.toml")
    texts = [make_policy([rule.text for rule in document.rules]).digest for document in (one, two)]
    assert texts[0] == texts[1]


# A policy that changes while connections are open


def test_a_reload_counts_for_the_next_request_on_an_open_connection(scene: Scene) -> None:
    """A connection opened under the old rules has no right to them: the next request is judged by the new ones."""
    request = b"GET http://good.test:%d/ HTTP/1.1\r\nHost: good.test:%d\r\n\r\n" % (scene.port, scene.port)
    with scene.gate.connect() as conn:
        conn.sendall(request)
        assert read_reply(conn).status == 200
        scene.gate.set_policy(make_policy())
        conn.sendall(request)
        assert read_reply(conn).status == 403


@pytest.mark.parametrize("through", ["connect", "socks"])
def test_a_reload_counts_for_the_next_request_inside_a_tunnel(through: str, scene: Scene) -> None:
    """HTTP inside a tunnel is judged request by request, so a rule that is gone ends it, idle or not."""
    request = b"GET / HTTP/1.1\r\nHost: good.test:%d\r\n\r\n" % scene.port
    with scene.gate.connect() as conn:
        if through == "connect":
            assert connect_dial(conn, b"good.test:%d" % scene.port).status == 200
        else:
            assert socks_dial(conn, b"good.test", scene.port) == 0
        conn.sendall(request)
        assert read_reply(conn).status == 200
        scene.gate.set_policy(make_policy())
        before = scene.mark()
        try:
            conn.sendall(request)
            answer = read_until(conn, b"\r\n\r\n")
        except ConnectionError:
            answer = b""  # cutting the idle connection off would do as well
    assert not answer.startswith(b"HTTP/1.1 200"), "served under a rule that is gone"
    assert scene.since(before).received == 0
    assert all(decision["verdict"] == "deny" for decision in scene.since(before).decisions)


def test_a_reload_closes_a_tunnel_that_is_no_longer_allowed(scene: Scene) -> None:
    """An open tunnel ends with its rule, and one whose rule stays goes on."""
    with scene.gate.connect() as cut, scene.gate.connect() as kept:
        assert connect_dial(cut, b"a.wild.test:%d" % scene.port).status == 200
        assert connect_dial(kept, b"good.test:%d" % scene.port).status == 200
        assert scene.gate.set_policy(make_policy([f"good.test:{scene.port} private"])) == 1
        assert read_all(cut) == b""
        kept.sendall(PING)
        assert read_until(kept, b"\n") == PONG


@pytest.mark.parametrize("direction", ["up", "down"])
def test_a_reload_closes_a_tunnel_in_the_middle_of_a_long_transfer(direction: str, start_scene: StartScene) -> None:
    """Also one that has moved megabytes; not a byte goes out afterwards, and all of them are counted."""
    amount = 6_000_000

    def pour(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        conn.sendall(bytes(amount))
        keep_silent(conn, origin, raw)

    scene = start_scene(handler=keep_silent if direction == "up" else pour)
    mark = scene.mark()
    with scene.gate.connect() as conn:
        assert connect_dial(conn, b"good.test:%d" % scene.port).status == 200
        if direction == "up":
            conn.sendall(bytes(amount))
            wait_until(lambda: scene.origin.received == amount, "the upload")
        else:
            assert len(read_exactly(conn, amount)) == amount
        assert scene.gate.set_policy(make_policy()) == 1
        assert read_all(conn) == b""
        with contextlib.suppress(ConnectionError):
            conn.sendall(b"more")
    scene.settle()
    (end,) = scene.since(mark, ends=1).ends
    assert (end["sent"], end["received"]) == ((amount, 0) if direction == "up" else (0, amount))
    assert end["note"] == "revoked"
    assert scene.origin.closed.acquire(timeout=60)
    assert scene.origin.received == (amount if direction == "up" else 0)


class SlowNames:
    """A look-up that waits until it is told to go on."""

    def __init__(self, scene: Scene) -> None:
        self.asked = threading.Event()
        self._go_on = asyncio.Event()
        self._scene = scene

    async def __call__(self, name: str) -> Sequence[str]:
        self.asked.set()
        await self._go_on.wait()
        return ["127.0.0.1"]

    def go_on(self) -> None:
        async def release() -> None:
            self._go_on.set()

        self._scene.gate.call(release())


def slow_down(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> SlowNames:
    slow = SlowNames(scene)
    monkeypatch.setattr(scene.gate.gateway.state.resolver, "_lookup", slow)
    return slow


def wish(scene: Scene, through: str) -> bytes:
    """A request for good.test, through one of three doors."""
    if through == "absolute":
        return b"GET http://good.test:%d/ HTTP/1.1\r\nHost: good.test:%d\r\n\r\n" % (scene.port, scene.port)
    if through == "connect":
        return b"CONNECT good.test:%d HTTP/1.1\r\nHost: good.test\r\n\r\n" % scene.port
    return b"\x05\x01\x00\x05\x01\x00\x03\x09good.test" + scene.port.to_bytes(2)


def is_served(conn: socket.socket, through: str) -> bool:
    """Does the server's own answer come back?"""
    try:
        if through == "absolute":
            return read_reply(conn).status == 200
        opened = read_exactly(conn, 12)[3] == 0 if through == "socks" else read_reply(conn).status == 200
        if opened:
            conn.sendall(PING)
        return opened and read_until(conn, b"\n") == PONG
    except ConnectionError:
        return False


@pytest.mark.parametrize("through", ["absolute", "connect", "socks"])
@pytest.mark.parametrize("keeps", [True, False], ids=["rule kept", "rule gone"])
def test_a_reload_counts_for_a_request_that_is_being_resolved(
    keeps: bool, through: str, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rule that goes while its name is looked up opens no connection. Control: one that stays does."""
    slow = slow_down(scene, monkeypatch)
    with scene.gate.connect() as conn:
        conn.sendall(wish(scene, through))
        assert slow.asked.wait(60)
        scene.gate.set_policy(make_policy([f"good.test:{scene.port} private"] if keeps else []))
        slow.go_on()
        served = is_served(conn, through)
    assert served == keeps
    assert (scene.origin.received > 0) == keeps


@pytest.mark.parametrize("through", ["absolute", "connect", "socks"])
@pytest.mark.parametrize("keeps", [True, False], ids=["rule kept", "rule gone"])
def test_a_reload_counts_for_a_request_that_is_being_dialled(keeps: bool, through: str, scene: Scene) -> None:
    """The same while the server is being connected to: a rule that is gone gets not a byte through."""
    dialling, go_on = threading.Event(), asyncio.Event()

    async def wait() -> None:
        dialling.set()
        await go_on.wait()

    async def release() -> None:
        go_on.set()

    scene.dials.before = wait
    with scene.gate.connect() as conn:
        conn.sendall(wish(scene, through))
        assert dialling.wait(60)
        scene.gate.set_policy(make_policy([f"good.test:{scene.port} private"] if keeps else []))
        scene.gate.call(release())
        served = is_served(conn, through)
    assert served == keeps
    assert (scene.origin.received > 0) == keeps


# The running server and its policy file


def policy_text(port: int, *names: str) -> str:
    rules = ", ".join(f'"{name}:{port}"' for name in names)
    hosts = ", ".join(f'"{name}": "127.0.0.1"' for name in ("good.test", "other.test", "evil.test"))
    return f'{{"allow": [{rules}], "hosts": {{{hosts}}}}}'


def test_a_broken_reload_keeps_the_last_good_policy(serve: StartServing) -> None:
    """After each broken edit the old rules stand, the failure is on record, and a good edit takes effect whole."""
    with RawOrigin() as origin:
        server = serve(policy=policy_text(origin.port, "good.test"), policy_name="policy.json")
        assert server.get("good.test", origin.port).status == 200
        assert server.get("evil.test", origin.port).status == 403

        def wait_for_failures(count: int) -> None:
            wait_until(lambda: server.audit.read_text().count('"reload-failed"') >= count, "the failed reload")

        broken = ("][", '{"allow": ["evil.test:*"', '{"allow": ["*:* private"]}')
        for number, text in enumerate(broken, 1):
            server.write(text)
            server.process.send_signal(signal.SIGHUP)
            wait_for_failures(number)
            assert server.get("good.test", origin.port).status == 200
            assert server.get("evil.test", origin.port).status == 403
        server.policy.unlink()
        server.process.send_signal(signal.SIGHUP)
        wait_for_failures(len(broken) + 1)
        assert server.get("good.test", origin.port).status == 200
        assert server.get("evil.test", origin.port).status == 403
        server.write(policy_text(origin.port, "other.test"))
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: '"reload"' in server.audit.read_text(), "the reload")
        assert server.get("good.test", origin.port).status == 403
        assert server.get("other.test", origin.port).status == 200


@pytest.mark.parametrize("policy", ["][", '{"allow": ["*"]}', '{"allow": ["good.test"], "allow": []}'])
def test_the_server_does_not_start_with_a_broken_policy(policy: str, serve: StartServing) -> None:
    """Nothing listens, so nothing can be let out by mistake; the exit status says so."""
    server = serve("--allow", "good.test", policy=policy, policy_name="policy.json")
    assert server.process.wait(60) == 2
    assert "policy.json" in server.errors


def test_no_tunnel_opens_without_rules(start_scene: StartScene) -> None:
    """What would be asked for inside a tunnel is never heard, since the tunnel itself is refused."""
    scene = start_scene([])
    with scene.gate.connect() as conn:
        assert connect_dial(conn, b"good.test:%d" % scene.port).status == 403
    with scene.gate.connect() as conn:
        assert socks_dial(conn, b"good.test", scene.port) == 2
    assert scene.origin.connections == 0
