"""Several clients of one gateway: none gets what another may reach, by its address, its credential or its past."""

from __future__ import annotations

import json
import signal
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.fixtures.gateways import StartRawOrigin, StartServing
from tests.support.gateways.neighbours import ALLOWED, DENIED, DOORS, UNAUTHORISED, Neighbour, write_clients
from tests.support.gateways.scene import wait_until
from tests.support.gateways.serving import Serving
from tests.support.origins.raw import PING, PONG, RawOrigin

A = Neighbour("alice", "127.0.1.1", "alice-knows-this-and-keeps-it")
B = Neighbour("bob", "127.0.2.1", "bob-has-another-long-word")

# A user namespace has a limit of its own.
_NO_WATCHES = 'echo 0 > /proc/sys/user/max_inotify_instances; exec "$@"'
_WITHOUT_WATCHES = ("unshare", "-Ur", "sh", "-ec", _NO_WATCHES, "sh")


class _Scene:
    """a.test is for alice and b.test for bob; both lead to the same server."""

    def __init__(self, serve: StartServing, origin: RawOrigin, folder: Path, *options: str) -> None:
        self.origin = origin
        self.alice = replace(A, rules=(f"a.test:{origin.port}",))
        self.bob = replace(B, rules=(f"b.test:{origin.port}",))
        self.file = write_clients(folder / "clients.json", self.alice, self.bob)
        self.serving: Serving = serve("--clients", str(self.file), "--admin", "127.0.0.1:0", *options)

    def reach(self, who: Neighbour, door: str, host: str) -> str:
        return who.reach(self.serving, door, host, self.origin.port)

    def refused(self, reason: str, count: int) -> list[dict[str, Any]]:
        """The lines with this reason. A client may be answered before they are in the log."""
        found: list[dict[str, Any]] = []

        def are_there() -> bool:
            found[:] = [line for line in self.serving.lines("decision") if line["reason"] == reason]
            return len(found) >= count

        wait_until(are_there, f"{count} lines with the reason {reason}")
        assert len(found) == count
        return found

    def reload(self, *neighbours: Neighbour) -> None:
        before = self.serving.errors.count("reloaded (")
        write_clients(self.file, *neighbours)
        self.serving.signal(signal.SIGHUP)
        wait_until(lambda: self.serving.errors.count("reloaded (") > before, "the clients to be read again")


@pytest.fixture
def scene(serve: StartServing, start_raw_origin: StartRawOrigin, tmp_path: Path) -> _Scene:
    return _Scene(serve, start_raw_origin(), tmp_path)


@pytest.mark.threat("T-S1")
@pytest.mark.parametrize("door", DOORS)
def test_network_and_credential_must_both_fit(scene: _Scene, door: str) -> None:
    alice, bob = scene.alice, scene.bob
    for who, own, others in ((alice, "a.test", "b.test"), (bob, "b.test", "a.test")):
        assert scene.reach(who, door, own) == ALLOWED, "the control"
        assert scene.reach(who, door, others) == DENIED
    # A client may be answered before the server has taken its connection.
    wait_until(lambda: scene.origin.connections == 2, "the two connections of the control")
    for thief, victim in ((alice, bob), (bob, alice)):
        for host in ("a.test", "b.test"):
            assert scene.reach(thief.with_login_of(victim), door, host) == UNAUTHORISED
            assert scene.reach(replace(thief, name="", credential=""), door, host) == UNAUTHORISED
            assert scene.reach(replace(thief, name=victim.name), door, host) == UNAUTHORISED
    assert scene.origin.connections == 2
    assert {(line["sandbox"], line["note"]) for line in scene.refused("credentials", 12)} == {
        ("alice", "from 127.0.1.1"),
        ("bob", "from 127.0.2.1"),
    }
    assert all(A.credential not in text for text in (scene.serving.errors, scene.serving.audit.read_text()))


@pytest.mark.threat("T-S1")
@pytest.mark.parametrize("door", DOORS)
def test_an_address_of_no_client_is_refused_whatever_it_knows(scene: _Scene, door: str) -> None:
    reached = scene.origin.connections
    for who in (scene.alice, scene.bob, replace(A, name="", credential="")):
        stranger = replace(who, address="127.0.3.1")
        # HTTP has a word for it; SOCKS5 has only one for all that is wrong with a client.
        assert scene.reach(stranger, door, "a.test") == (UNAUTHORISED if door == "socks5" else DENIED)
    assert scene.origin.connections == reached
    lines = scene.refused("unknown-client", 3)
    assert {(line["sandbox"], line["note"]) for line in lines} == {("", "from 127.0.3.1")}
    assert scene.reach(scene.alice, door, "a.test") == ALLOWED, "the control"


@pytest.mark.threat("T-S1")
def test_each_record_names_its_client_and_its_policy(scene: _Scene) -> None:
    for who in (scene.alice, scene.bob):
        for host in ("a.test", "b.test"):
            scene.reach(who, "http", host)
    scene.refused("not-listed", 2)
    lines = scene.serving.lines("decision")
    assert [(line["sandbox"], line["host"], line["verdict"]) for line in lines] == [
        ("alice", "a.test", "allow"),
        ("alice", "b.test", "deny"),
        ("bob", "a.test", "deny"),
        ("bob", "b.test", "allow"),
    ]
    policies = {line["sandbox"]: line["policy"] for line in scene.serving.lines("start")}
    assert policies["alice"] != policies["bob"]
    assert all(line["policy"] == policies[line["sandbox"]] for line in lines)


@pytest.mark.threat("T-S1")
def test_one_connection_has_one_client_whoever_it_says_it_is(scene: _Scene) -> None:
    """Keep-alive: what was allowed before is of no help to who comes with another's name, nor the other way round."""
    port = scene.origin.port
    with scene.alice.connect(scene.serving) as conn:
        assert scene.alice.ask(conn, "a.test", port) == ALLOWED
        assert scene.alice.with_login_of(scene.bob).ask(conn, "b.test", port) == UNAUTHORISED
        assert scene.alice.ask(conn, "b.test", port) == DENIED
        assert scene.alice.ask(conn, "a.test", port) == ALLOWED


@pytest.mark.threat("T-S1")
def test_upstream_connections_and_budgets_are_not_shared(
    serve: StartServing, start_raw_origin: StartRawOrigin, tmp_path: Path
) -> None:
    """The same rule for both: each has connections of its own to the server, and spends only its own bytes."""
    origin = start_raw_origin()
    rules = (f"a.test:{origin.port}",)
    alice = replace(A, rules=rules, more={"limits": {"max_upload": 400}})
    bob = replace(B, rules=rules, more={"limits": {"max_upload": 400}})
    serving: Serving = serve("--clients", str(write_clients(tmp_path / "clients.json", alice, bob)))
    with alice.connect(serving) as one, bob.connect(serving) as two:
        assert alice.ask(one, "a.test", origin.port) == ALLOWED
        assert bob.ask(two, "a.test", origin.port) == ALLOWED
        assert origin.connections == 2
    with alice.connect(serving) as conn:
        assert alice.tunnel(conn, "a.test", origin.port) == ALLOWED
        conn.sendall(PING)
        assert conn.recv(100) == PONG
        conn.sendall(b"x" * 1000)
        assert conn.recv(100) == b"", "alice has spent what she has"
    with bob.connect(serving) as conn:
        assert bob.tunnel(conn, "a.test", origin.port) == ALLOWED
        conn.sendall(PING)
        assert conn.recv(100) == PONG


@pytest.mark.threat("T-S2")
@pytest.mark.parametrize("workers", ["1", "2"])
def test_clients_come_change_and_go_without_a_restart(
    serve: StartServing, start_raw_origin: StartRawOrigin, tmp_path: Path, workers: str
) -> None:
    scene = _Scene(serve, start_raw_origin(), tmp_path, "--workers", workers)
    alice, bob, port = scene.alice, scene.bob, scene.origin.port
    carol = Neighbour("carol", "127.0.3.1", "carol-is-new-and-random", (f"b.test:{port}",))
    held = {name: bob.connect(scene.serving) for name in ("tunnel", "idle")}
    with held["tunnel"] as tunnel, held["idle"] as idle, alice.connect(scene.serving) as hers:
        assert bob.tunnel(tunnel, "b.test", port) == ALLOWED
        assert bob.ask(idle, "b.test", port) == ALLOWED
        assert alice.tunnel(hers, "a.test", port) == ALLOWED
        before = _in_force(scene.serving)
        write_clients(scene.file, alice, carol)
        scene.serving.signal(signal.SIGHUP)
        wait_until(lambda: _in_force(scene.serving).keys() == {"alice", "carol"}, "every worker to know carol")
        assert _in_force(scene.serving)["alice"] == before["alice"]
        assert _is_over(tunnel)
        assert _is_over(idle)
        hers.sendall(PING)
        assert hers.recv(100) == PONG, "what did not change is not touched"
    assert scene.reach(carol, "http", "b.test") == ALLOWED
    assert scene.reach(carol, "http", "a.test") == DENIED
    assert scene.reach(bob, "http", "b.test") == DENIED
    scene.refused("unknown-client", 1)


@pytest.mark.threat("T-S2")
@pytest.mark.parametrize("is_told", [True, False])
def test_a_folder_of_clients_is_kept_up_with(
    serve: StartServing, start_raw_origin: StartRawOrigin, tmp_path: Path, is_told: bool
) -> None:
    """By what the kernel tells, or where it has no watches left by looking: a file that comes, changes and goes."""
    origin = start_raw_origin()
    alice = replace(A, rules=(f"a.test:{origin.port}",))
    folder = tmp_path / "clients"
    folder.mkdir()
    write_clients(folder / "alice.json", alice)
    command = () if is_told else _WITHOUT_WATCHES
    serving: Serving = serve("--clients", str(folder), "--admin", "127.0.0.1:0", command=command)
    held = alice.connect(serving)
    assert alice.tunnel(held, "a.test", origin.port) == ALLOWED
    bob = replace(B, rules=(f"b.test:{origin.port}",))
    write_clients(folder / "bob.json", bob)
    wait_until(lambda: "bob" in _in_force(serving), "bob to be known")
    assert bob.reach(serving, "connect", "b.test", origin.port) == ALLOWED
    (folder / "bob.json").write_text((folder / "bob.json").read_text().replace("b.test", "c.test"))
    wait_until(lambda: bob.reach(serving, "connect", "b.test", origin.port) == DENIED, "bob's rules to be read")
    (folder / "bob.json").unlink()
    wait_until(lambda: "bob" not in _in_force(serving), "bob to be gone")
    with held:
        held.sendall(PING)
        assert held.recv(100) == PONG, "what did not change is not touched"


@pytest.mark.threat("T-S2")
@pytest.mark.parametrize("what", ["credential", "networks", "rules"])
def test_a_change_cuts_what_it_no_longer_allows(scene: _Scene, what: str) -> None:
    """Also networks that are exchanged: from then on alice's old address is bob's, and her old connections are gone."""
    alice, bob, port = scene.alice, scene.bob, scene.origin.port
    changed = {
        "credential": (replace(alice, credential="alice-has-been-given-a-new-one"), bob),
        "networks": (replace(alice, address=bob.address), replace(bob, address=alice.address)),
        "rules": (replace(alice, rules=()), bob),
    }[what]
    with alice.connect(scene.serving) as tunnel, alice.connect(scene.serving) as idle:
        assert alice.tunnel(tunnel, "a.test", port) == ALLOWED
        assert alice.ask(idle, "a.test", port) == ALLOWED
        scene.reload(*changed)
        assert _is_over(tunnel)
        if what == "rules":
            assert alice.ask(idle, "a.test", port) == DENIED
        else:
            assert _is_over(idle)
    assert scene.reach(alice, "http", "a.test") == (DENIED if what == "rules" else UNAUTHORISED)
    if what != "rules":
        assert scene.reach(changed[0], "http", "a.test") == ALLOWED
    assert scene.reach(changed[1], "http", "b.test") == ALLOWED
    assert scene.reach(changed[1], "http", "a.test") == DENIED


@pytest.mark.threat("T-S2")
def test_a_broken_file_changes_nothing(scene: _Scene) -> None:
    alice, port = scene.alice, scene.origin.port
    with alice.connect(scene.serving) as tunnel:
        assert alice.tunnel(tunnel, "a.test", port) == ALLOWED
        overlapping = replace(scene.bob, address=alice.address)
        for number, text in enumerate(("{", json.dumps({"clients": {"x": {}}}), "")):
            scene.file.write_text(text)
            scene.serving.signal(signal.SIGHUP)
            wait_until(lambda: len(scene.serving.lines("reload-failed")) > number, "the reload to fail")  # noqa: B023
        write_clients(scene.file, alice, overlapping)
        wait_until(lambda: "alice overlap" in scene.serving.errors, "the overlap to be refused")
        tunnel.sendall(PING)
        assert tunnel.recv(100) == PONG
    assert scene.reach(alice, "http", "a.test") == ALLOWED
    assert scene.reach(scene.bob, "http", "b.test") == ALLOWED


@pytest.mark.threat("T-S1")
@pytest.mark.parametrize("door", ["connect", "socks5"])
def test_no_client_is_led_into_the_network_of_another(serve: StartServing, tmp_path: Path, door: str) -> None:
    """The gateway is on all of them, and a rule for a large network can have theirs in it; engines give them 10.89."""
    with socket.create_server(("127.0.2.9", 0)) as of_bob:
        port = of_bob.getsockname()[1]
        with socket.create_server(("127.0.3.9", port)):
            hosts = {"bobs.test": "127.0.2.9", "free.test": "127.0.3.9"}
            rules = (f"127.0.0.0/8:{port}", f"bobs.test:{port}", f"free.test:{port}")
            alice = replace(A, rules=rules, more={"hosts": hosts})
            carol = Neighbour("carol", "127.0.3.1", "carol-came-later-with-this")
            file = write_clients(tmp_path / "clients.json", alice, B)
            serving: Serving = serve("--clients", str(file))

            def reached() -> list[str]:
                hosts = ("127.0.2.9", "bobs.test", "127.0.3.9", "free.test")
                return [alice.reach(serving, door, host, port) for host in hosts]

            assert reached() == [DENIED, DENIED, ALLOWED, ALLOWED]
            with alice.connect(serving) as open_before:
                assert alice.tunnel(open_before, "127.0.3.9", port) == ALLOWED
                write_clients(file, alice, carol)
                serving.signal(signal.SIGHUP)
                wait_until(lambda: "reloaded (" in serving.errors, "the clients to be read again")
                assert _is_over(open_before), "it leads to carol now"
            assert reached() == [ALLOWED, ALLOWED, DENIED, DENIED]


@pytest.mark.threat("T-S3")
def test_one_client_cannot_take_the_connections_of_another(
    serve: StartServing, start_raw_origin: StartRawOrigin, tmp_path: Path
) -> None:
    """With 800 descriptors each of two has 56 connections; strangers have theirs apart."""
    command = ("prlimit", "--nofile=800:800", "--")
    origin = start_raw_origin()
    alice, bob = replace(A, rules=(f"a.test:{origin.port}",)), replace(B, rules=(f"b.test:{origin.port}",))
    file = write_clients(tmp_path / "clients.json", alice, bob)
    serving: Serving = serve("--clients", str(file), command=command)
    greedy = [alice.connect(serving) for _ in range(60)]
    try:
        wait_until(lambda: bool(serving.lines("limit")), "alice to have too many")
        assert serving.lines("limit")[0]["sandbox"] == "alice"
        for door in DOORS:
            assert bob.reach(serving, door, "b.test", origin.port) == ALLOWED
    finally:
        for conn in greedy:
            conn.close()


def _in_force(serving: Serving) -> dict[str, str]:
    return dict(json.loads(serving.ask_admin("/clients").body))


def _is_over(conn: socket.socket) -> bool:
    try:
        return conn.recv(100) == b""
    except ConnectionResetError:
        return True
