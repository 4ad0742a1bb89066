"""A8 of the threat catalogue: a policy that is empty, broken or being replaced never lets more out than a good one."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from exeat.errors import ConfigError
from exeat.policy import parse_document
from exeat.sources import RuleSources, load_document, make_policy
from tests.support.doors import ALL, HOST_IN_CONNECT, OUTER, Door, Verdict, assert_verdict, connect_dial, read_reply, socks_dial
from tests.support.gate import read_all, read_until
from tests.support.raw_origin import PING, PONG, RawOrigin
from tests.support.scene import Scene, wait_until
from tests.threats.conftest import StartScene

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
def test_a8_an_empty_policy_allows_nothing(door: Door, start_scene: StartScene) -> None:
    """A8: no rules is no way out. The control is the same question after a rule was given."""
    scene = start_scene([])
    for host in ("good.test", "evil.test", "127.0.0.1", "localhost"):
        assert_verdict(door, scene, host, Verdict.DENY)
    scene.gate.set_policy(make_policy([f"good.test:{scene.port} private", f"127.0.0.1:{scene.port}"]))
    assert_verdict(door, scene, "127.0.0.1", Verdict.ALLOW)
    if door.name != "socks-address":
        assert_verdict(door, scene, "good.test", Verdict.ALLOW)


@pytest.mark.parametrize("text", ["{}", '{"allow": []}', "", "# nothing\n", "allow = []\n"])
def test_a8_an_empty_document_is_a_policy_without_rules(text: str, tmp_path: Path) -> None:
    """A8: an empty list is read as what it is, and decides nothing in anybody's favour."""
    file = tmp_path / ("policy.json" if text.startswith("{") else "policy.toml")
    file.write_text(text)
    policy, _ = RuleSources(files=(str(file),)).load()
    assert policy.rules == ()


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN.keys())
def test_a8_a_broken_document_is_refused_whole(text: str, tmp_path: Path) -> None:
    """A8: there is no partial policy: one fault, and the rules beside it do not count either."""
    file = tmp_path / "policy.json"
    file.write_text(text)
    with pytest.raises(ConfigError):
        load_document(str(file))
    control = tmp_path / "good.json"
    control.write_text('{"allow": ["good.test"]}')
    assert len(load_document(str(control)).rules) == 1


def test_a8_a_file_that_cannot_be_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A8: missing, a folder, a FIFO, without rights, too large, not UTF-8: never an empty policy."""
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


def test_a8_an_unrelated_edit_keeps_the_meaning() -> None:
    """A8: comments and order are not part of a policy, so a reload after such an edit changes nothing."""
    one = parse_document('allow = ["good.test", "b.test"]\n', "a.toml")
    two = parse_document('# a comment\nallow = ["b.test", "good.test"]\n', "a.toml")
    texts = [make_policy([rule.text for rule in document.rules]).digest for document in (one, two)]
    assert texts[0] == texts[1]


# A policy that changes while connections are open


def test_a8_a_reload_counts_for_the_next_request_on_an_open_connection(scene: Scene) -> None:
    """A8: a connection opened under the old rules has no right to them: the next request is judged by the new ones."""
    request = b"GET http://good.test:%d/ HTTP/1.1\r\nHost: good.test:%d\r\n\r\n" % (scene.port, scene.port)
    with scene.gate.connect() as conn:
        conn.sendall(request)
        assert read_reply(conn).status == 200
        scene.gate.set_policy(make_policy())
        conn.sendall(request)
        assert read_reply(conn).status == 403


@pytest.mark.parametrize("through", ["connect", "socks"])
def test_a8_a_reload_counts_for_the_next_request_inside_a_tunnel(through: str, scene: Scene) -> None:
    """A8: HTTP inside a tunnel is judged request by request, so a rule that is gone ends it, idle or not."""
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


def test_a8_a_reload_closes_a_tunnel_that_is_no_longer_allowed(scene: Scene) -> None:
    """A8: an open tunnel ends with its rule, and one whose rule stays goes on."""
    with scene.gate.connect() as cut, scene.gate.connect() as kept:
        assert connect_dial(cut, b"a.wild.test:%d" % scene.port).status == 200
        assert connect_dial(kept, b"good.test:%d" % scene.port).status == 200
        assert scene.gate.set_policy(make_policy([f"good.test:{scene.port} private"])) == 1
        assert read_all(cut) == b""
        kept.sendall(PING)
        assert read_until(kept, b"\n") == PONG


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


@pytest.mark.parametrize("through", ["absolute", "connect", "socks"])
@pytest.mark.parametrize("keeps", [True, False], ids=["rule kept", "rule gone"])
def test_a8_a_reload_counts_for_a_request_that_is_being_resolved(
    keeps: bool, through: str, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A8: a rule that goes while its name is looked up opens no connection, now or later. Control: one that stays does."""
    slow = slow_down(scene, monkeypatch)
    with scene.gate.connect() as conn:
        if through == "absolute":
            conn.sendall(b"GET http://good.test:%d/ HTTP/1.1\r\nHost: good.test:%d\r\n\r\n" % (scene.port, scene.port))
        elif through == "connect":
            conn.sendall(b"CONNECT good.test:%d HTTP/1.1\r\nHost: good.test\r\n\r\n" % scene.port)
        else:
            conn.sendall(b"\x05\x01\x00\x05\x01\x00\x03\x09good.test" + scene.port.to_bytes(2))
        assert slow.asked.wait(10)
        scene.gate.set_policy(make_policy([f"good.test:{scene.port} private"] if keeps else []))
        slow.go_on()
        if through == "socks":
            answer = read_until(conn, b"\x00" * 6)[2:]
            allowed = answer[1:2] == b"\x00"
        else:
            answer = read_until(conn, b"\r\n\r\n")
            allowed = answer.startswith(b"HTTP/1.1 200")
        if allowed and through != "absolute" and not keeps:
            conn.sendall(PING)
            assert read_until(conn, b"\n") != PONG, "the tunnel works under a rule that is gone"
    assert allowed == keeps


# The running server and its policy file


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def start(*options: str, policy: str | None = None) -> Server:
        server = Server(tmp_path, options, policy)
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.close()


class Server:
    """`exeat serve` as a process of its own."""

    def __init__(self, folder: Path, options: Sequence[str], policy: str | None) -> None:
        self.policy = folder / "policy.json"
        self.audit = folder / "audit.jsonl"
        self._errors = folder / "errors.txt"
        argv = ["serve", "--port", "0", "--audit", str(self.audit), *options]
        if policy is not None:
            self.write(policy)
            argv += ["--policy", str(self.policy)]
        environ = {key: value for key, value in os.environ.items() if not key.startswith(("EXEAT_", "PROXY_"))}
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen([sys.executable, "-m", "exeat", *argv], stderr=errors, env=environ)
        wait_until(lambda: "listening on" in self.errors or self.process.poll() is not None, "the server to start")

    @property
    def errors(self) -> str:
        return self._errors.read_text()

    @property
    def port(self) -> int:
        return int(self.errors.partition("listening on http://")[2].partition(",")[0].rpartition(":")[2])

    def write(self, policy: str) -> None:
        """Replace the file as a careful editor does."""
        draft = self.policy.with_suffix(".new")
        draft.write_text(policy)
        draft.replace(self.policy)

    def status(self, host: str, port: int) -> int:
        with socket.create_connection(("127.0.0.1", self.port), 10) as conn:
            conn.sendall(f"GET http://{host}:{port}/ HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
            return read_reply(conn).status

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def policy_text(port: int, *names: str) -> str:
    rules = ", ".join(f'"{name}:{port}"' for name in names)
    hosts = ", ".join(f'"{name}": "127.0.0.1"' for name in ("good.test", "other.test", "evil.test"))
    return f'{{"allow": [{rules}], "hosts": {{{hosts}}}}}'


def test_a8_a_broken_reload_keeps_the_last_good_policy(start_server: Callable[..., Server]) -> None:
    """A8: after each broken edit the old rules stand, the failure is on record, and a good edit takes effect whole."""
    with RawOrigin() as origin:
        server = start_server(policy=policy_text(origin.port, "good.test"))
        assert server.status("good.test", origin.port) == 200
        assert server.status("evil.test", origin.port) == 403
        failures = 0
        for text in ("", '{"allow": ["evil.test:*"', '{"allow": ["*:* private"]}'):
            broken = text or "]["
            server.write(broken)
            server.process.send_signal(signal.SIGHUP)
            failures += 1
            wait_until(lambda wanted=failures: server.audit.read_text().count('"reload-failed"') >= wanted, "the failed reload")  # type: ignore[misc]
            assert server.status("good.test", origin.port) == 200
            assert server.status("evil.test", origin.port) == 403
        server.policy.unlink()
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: server.audit.read_text().count('"reload-failed"') > failures, "the failed reload")
        assert server.status("good.test", origin.port) == 200
        assert server.status("evil.test", origin.port) == 403
        server.write(policy_text(origin.port, "other.test"))
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: '"reload"' in server.audit.read_text(), "the reload")
        assert server.status("good.test", origin.port) == 403
        assert server.status("other.test", origin.port) == 200


@pytest.mark.parametrize("policy", ["][", '{"allow": ["*"]}', '{"allow": ["good.test"], "allow": []}'])
def test_a8_the_server_does_not_start_with_a_broken_policy(policy: str, start_server: Callable[..., Server]) -> None:
    """A8: nothing listens, so nothing can be let out by mistake; the exit status says so."""
    server = start_server("--allow", "good.test", policy=policy)
    assert server.process.wait(20) == 2
    assert "policy.json" in server.errors


def test_a8_every_door_is_shut_without_rules(start_scene: StartScene) -> None:
    """A8: the inner doors too have nothing to open when the tunnel itself is refused."""
    scene = start_scene([])
    with scene.gate.connect() as conn:
        assert connect_dial(conn, b"good.test:%d" % scene.port).status == 403
    assert scene.origin.connections == 0
    assert HOST_IN_CONNECT in ALL
