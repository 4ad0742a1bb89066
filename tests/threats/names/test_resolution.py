"""No question before the policy has spoken, and no address that was not judged."""

from __future__ import annotations

import socket
from collections.abc import Sequence

import pytest

from exeat.gateway.gates.resolve import is_own_address
from tests.support.clients.talk import connect_dial, read_reply
from tests.support.fixtures.gateways import StartScene
from tests.support.gateways.doors import (
    ABSOLUTE,
    ALL,
    CONNECT,
    REDIRECT,
    SOCKS_NAME,
    Door,
    Outcome,
    Verdict,
    ask,
    assert_verdict,
)
from tests.support.gateways.scene import Scene, Script
from tests.support.jails.networks import own_addresses
from tests.support.origins.plain import OK
from tests.support.origins.raw import RawOrigin

every_name_door = pytest.mark.parametrize("door", [ABSOLUTE, CONNECT, SOCKS_NAME, REDIRECT], ids=str)

PUBLIC = "93.184.215.14"
PUBLIC6 = "2606:2800:21f:cb07::1"
INSIDE = {
    "loopback": "127.0.0.1",
    "all of loopback": "127.254.1.9",
    "loopback, IPv6": "::1",
    "unspecified": "0.0.0.0",
    "unspecified, IPv6": "::",
    "metadata": "169.254.169.254",
    "metadata of containers": "169.254.170.2",
    "metadata, IPv6": "fd00:ec2::254",
    "metadata in public space": "168.63.129.16",
    "metadata in shared space": "100.100.100.200",
    "link-local": "169.254.1.1",
    "link-local, IPv6": "fe80::1",
    "link-local with a zone": "fe80::1%lo",
    "private 10": "10.0.0.1",
    "private 172": "172.31.255.255",
    "private 192": "192.168.1.1",
    "unique local": "fd12:3456::1",
    "site-local": "fec0::1",
    "carrier NAT": "100.64.0.1",
    "multicast": "224.0.0.1",
    "multicast, IPv6": "ff02::1",
    "broadcast": "255.255.255.255",
    "reserved": "240.0.0.1",
    "benchmarking": "198.18.0.1",
    "mapped loopback": "::ffff:127.0.0.1",
    "mapped metadata": "::ffff:169.254.169.254",
    "compatible loopback": "::127.0.0.1",
    "translated loopback": "::ffff:0:127.0.0.1",
    "NAT64 metadata": "64:ff9b::a9fe:a9fe",
    "NAT64 of a public address": "64:ff9b::5db8:d70e",
    "local NAT64 metadata": "64:ff9b:1::a9fe:a9fe",
    "6to4 metadata": "2002:a9fe:a9fe::1",
    "6to4 of a public address": "2002:5db8:d70e::1",
    "Teredo": "2001:0:a9fe:a9fe::1",
    "ISATAP loopback": "2606:2800:21f:cb07:0:5efe:7f00:1",
    "documentation": "2001:db8::1",
    "outside global unicast": "4000::1",
}


def asked_and_denied(outcome: Outcome | None, address: str, name: str = "good.test") -> None:
    """Denied by what the name resolved to: asked once, nothing dialled, and the address is on record."""
    assert outcome is not None
    assert outcome.verdict is Verdict.DENY
    assert outcome.seen.asked == (name,)
    assert outcome.seen.dials == ()
    (decision,) = outcome.seen.decisions
    assert decision["reason"] in ("private-address", "own-address")
    assert decision["address"] == address


# D1


@pytest.mark.threat("T-D1")
@pytest.mark.parametrize("door", ALL, ids=str)
def test_a_name_that_is_not_allowed_is_never_asked_for(door: Door, scene: Scene) -> None:
    """Data in the labels of a refused name goes nowhere. Control: an allowed name is asked for."""
    data = "deadbeef" * 7
    for host in (
        f"{data}.evil.test",
        f"{data}.{data}.evil.test",
        f"{data}.good.test",
        "evil.test",
        f"{data}.wild.test.evil.test",
    ):
        assert_verdict(door, scene, host, Verdict.DENY)
    assert [name for name in scene.gate.asked if data in name or "evil" in name] == []
    assert_verdict(door, scene, f"{data}.wild.test", Verdict.ALLOW)
    assert f"{data}.wild.test" in scene.gate.asked or door.name == "socks-address"


@pytest.mark.threat("T-D1")
@every_name_door
def test_a_port_that_is_not_allowed_is_enough_not_to_ask(door: Door, scene: Scene) -> None:
    """The whole policy comes first, the port included."""
    assert_verdict(door, scene, "good.test", Verdict.DENY, scene.port + 1)
    assert scene.gate.asked == []


@pytest.mark.threat("T-D1")
def test_a_method_or_path_that_is_not_allowed_is_enough_not_to_ask(start_scene: StartScene) -> None:
    """And so are the method and the path."""
    scene = start_scene(["good.test:{port} private methods=GET paths=/pub/**"])
    for line in (b"POST http://good.test:%d/pub/a", b"GET http://good.test:%d/secret"):
        answer = scene.gate.send(line % scene.port + b" HTTP/1.1\r\nHost: good.test:%d\r\n\r\n" % scene.port)
        assert answer.startswith(b"HTTP/1.1 403")
    assert scene.gate.asked == []
    answer = scene.gate.send(
        b"GET http://good.test:%d/pub/a HTTP/1.1\r\nHost: good.test:%d\r\n\r\n" % (scene.port, scene.port)
    )
    assert answer.startswith(b"HTTP/1.1 200")
    assert scene.gate.asked == ["good.test"]


@pytest.mark.threat("T-D1")
@every_name_door
def test_a_deny_rule_comes_before_the_question(door: Door, start_scene: StartScene) -> None:
    """A name that one rule allows and another denies is not asked for."""
    scene = start_scene(deny=["secret.wild.test:1-65535"])
    assert_verdict(door, scene, "secret.wild.test", Verdict.DENY)
    assert scene.gate.asked == []
    assert_verdict(door, scene, "other.wild.test", Verdict.ALLOW)


# D2


@pytest.mark.threat("T-D2")
@every_name_door
def test_a_public_answer_is_dialled_as_it_was_judged(door: Door, start_scene: StartScene) -> None:
    """The control: public addresses are dialled, those very ones, after one question."""
    for answer in ([PUBLIC], [PUBLIC6], [PUBLIC, PUBLIC6], [PUBLIC, PUBLIC]):
        scene = start_scene(["good.test:{port}"], names={"good.test": answer})
        outcome = ask(door, scene, "good.test")
        assert outcome is not None
        assert outcome.verdict is Verdict.ALLOW
        assert outcome.seen.dials == ((tuple(dict.fromkeys(answer)), scene.port),)
        assert scene.gate.asked == ["good.test"]


@pytest.mark.threat("T-D2")
@every_name_door
@pytest.mark.parametrize("address", INSIDE.values(), ids=INSIDE.keys())
def test_an_answer_inside_is_denied(address: str, door: Door, start_scene: StartScene) -> None:
    """Alone, before a public address and behind one: a single inside address condemns the answer."""
    for answer in ([address], [PUBLIC, address], [address, PUBLIC], [PUBLIC6, PUBLIC, address]):
        scene = start_scene(["good.test:{port}"], names={"good.test": answer})
        outcome = ask(door, scene, "good.test")
        assert outcome is not None
        asked_and_denied(outcome, outcome.seen.decisions[0]["address"])
        assert scene.dials.made == []


@pytest.mark.threat("T-D2")
@every_name_door
@pytest.mark.parametrize("address", [text for text in INSIDE.values() if "%" not in text])
def test_an_answer_inside_is_dialled_where_the_rule_says_private(
    address: str, door: Door, start_scene: StartScene
) -> None:
    """The control: the same answer passes with `private`, so it was the address that was denied."""
    scene = start_scene(["good.test:1 private"], names={"good.test": [address]})
    outcome = ask(door, scene, "good.test", 1)
    assert outcome is not None
    assert outcome.verdict is Verdict.ALLOW
    assert len(outcome.seen.dials) == 1


@pytest.mark.threat("T-D2")
@every_name_door
def test_the_machines_own_addresses_are_denied(door: Door, start_scene: StartScene) -> None:
    """Public or not, an address of this machine is inside."""
    addresses = [*own_addresses(), "127.0.0.1", "::1"]
    for address in addresses:
        scene = start_scene(["good.test:{port}"], names={"good.test": [address]})
        asked_and_denied(ask(door, scene, "good.test"), address)


@pytest.mark.threat("T-D2")
@every_name_door
def test_a_public_address_of_this_machine_is_denied(
    door: Door, start_scene: StartScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shown with a machine that owns a public address: denied as its own, dialled where the rule says `private`."""
    monkeypatch.setattr(
        "exeat.gateway.gates.judging.is_own_address", lambda ip: str(ip) == PUBLIC or is_own_address(ip)
    )
    scene = start_scene(["good.test:{port}"], names={"good.test": [PUBLIC]})
    outcome = ask(door, scene, "good.test")
    asked_and_denied(outcome, PUBLIC)
    assert outcome is not None
    assert outcome.seen.decisions[0]["reason"] == "own-address"
    scene = start_scene(["good.test:{port} private"], names={"good.test": [PUBLIC]})
    control = ask(door, scene, "good.test")
    assert control is not None
    assert control.seen.dials == (((PUBLIC,), scene.port),)


@pytest.mark.threat("T-D2")
@every_name_door
def test_rebinding_between_two_connections(door: Door, start_scene: StartScene) -> None:
    """Public first, then metadata: each connection is judged by the answer that it is dialled with."""
    scene = start_scene(["good.test:{port}"], names=Script([PUBLIC], ["169.254.169.254"]))
    first = ask(door, scene, "good.test")
    assert first is not None
    assert first.seen.dials == (((PUBLIC,), scene.port),)
    scene.forget_names()
    asked_and_denied(ask(door, scene, "good.test"), "169.254.169.254")
    assert scene.dials.made == [((PUBLIC,), scene.port)]


@pytest.mark.threat("T-D2")
@every_name_door
def test_one_question_for_one_connection(door: Door, start_scene: StartScene) -> None:
    """There is no second look-up between judging and dialling that could answer otherwise."""
    scene = start_scene(["good.test:{port}"], names=Script([PUBLIC], ["127.0.0.1"]))
    outcome = ask(door, scene, "good.test")
    assert outcome is not None
    assert (outcome.seen.asked, outcome.seen.dials) == (("good.test",), (((PUBLIC,), scene.port),))
    assert scene.origin.connections == 0


def close_on_the_second_request(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
    """Answer one request; close on the next one without an answer, as a server does whose patience has ended."""
    origin.read(conn, raw)
    conn.sendall(OK)
    origin.read(conn, raw)


@pytest.mark.threat("T-D2")
@pytest.mark.parametrize(("second", "status"), [("127.0.0.1", 200), ("169.254.169.254", 403), ("10.0.0.1", 403)])
def test_rebinding_while_a_connection_is_replaced(second: str, status: int, start_scene: StartScene) -> None:
    """A kept connection that the server closed is dialled again only where the new answer may be dialled."""
    scene = start_scene(
        ["good.test:{port}", "127.0.0.1:{port}"],
        names=Script(["127.0.0.1"], [second]),
        handler=close_on_the_second_request,
    )
    request = b"GET http://good.test:%d/ HTTP/1.1\r\nHost: good.test:%d\r\n\r\n" % (scene.port, scene.port)
    with scene.gate.connect() as conn:
        conn.sendall(request)
        assert read_reply(conn).status == 200
        scene.forget_names()
        conn.sendall(request)
        assert read_reply(conn).status == status
    assert scene.gate.asked == ["good.test", "good.test"]
    assert len(scene.dials.made) == (2 if status == 200 else 1)
    assert {addresses for addresses, _ in scene.dials.made} == {("127.0.0.1",)}


@pytest.mark.threat("T-D2")
@every_name_door
@pytest.mark.parametrize("answer", [["127.0.0.1"], ["10.0.0.5"], ["127.0.0.1", PUBLIC]], ids=str)
def test_an_alias_to_the_inside_is_denied_by_its_address(
    answer: Sequence[str], door: Door, start_scene: StartScene
) -> None:
    """`good.test CNAME internal` is what its addresses are; a rule for the inside host does not help."""
    scene = start_scene(["good.test:{port}", "internal.test:{port} private"], names={"good.test": answer})
    outcome = ask(door, scene, "good.test")
    assert outcome is not None
    asked_and_denied(outcome, outcome.seen.decisions[0]["address"])


@pytest.mark.threat("T-D2")
@every_name_door
def test_an_inside_address_that_is_listed_is_reached_by_name(door: Door, start_scene: StartScene) -> None:
    """The controls: the address itself is listed, or the user mapped the name to it, and so the server is reached."""
    listed = start_scene(["good.test:{port}", "127.0.0.1:{port}"])
    mapped = start_scene(["good.test:{port}"], hosts={"good.test": "127.0.0.1"})
    for scene in (listed, mapped):
        outcome = ask(door, scene, "good.test")
        assert outcome is not None
        assert outcome.reached
    assert mapped.gate.asked == []


@pytest.mark.threat("T-D2")
@pytest.mark.parametrize("keeps", [True, False], ids=["connection kept", "connection closed"])
def test_what_one_rule_may_reach_inside_another_rule_may_not(keeps: bool, start_scene: StartScene) -> None:
    """`private` holds for its rule's requests only, also right after one of them has been there."""

    def answer_and_close(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        origin.read(conn, raw)
        conn.sendall(OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))

    scene = start_scene(
        ["good.test:{port} private methods=GET", "good.test:{port} methods=DELETE"],
        handler=None if keeps else answer_and_close,
    )
    request = b" http://good.test:%d/ HTTP/1.1\r\nHost: good.test:%d\r\n\r\n" % (scene.port, scene.port)
    for method, status in ((b"DELETE", 403), (b"GET", 200), (b"DELETE", 403), (b"GET", 200)):
        with scene.gate.connect() as conn:
            conn.sendall(method + request)
            assert read_reply(conn).status == status, method
    assert b"DELETE" not in scene.origin.everything


@pytest.mark.threat("T-D2")
@every_name_door
def test_an_address_denied_by_a_rule_is_denied_behind_a_name(door: Door, start_scene: StartScene) -> None:
    """A deny rule for an address holds for every name and every embedding that leads to it."""
    for answer in ([PUBLIC], [PUBLIC6, PUBLIC], [f"::ffff:{PUBLIC}"], ["64:ff9b::5db8:d70e"], ["2002:5db8:d70e::1"]):
        scene = start_scene(["good.test:{port} private"], deny=[f"{PUBLIC}:1-65535"], names={"good.test": answer})
        outcome = ask(door, scene, "good.test")
        assert outcome is not None
        assert outcome.verdict is Verdict.DENY, answer
        assert outcome.seen.dials == ()


@pytest.mark.threat("T-D2")
@pytest.mark.parametrize("answer", [[], ["not an address"], ["good.test"], [""], ["127.0.0.1:80"], ["0x7f.1"]], ids=str)
def test_an_answer_that_is_no_address_is_no_answer(answer: Sequence[str], start_scene: StartScene) -> None:
    """Nothing is dialled for an empty or malformed answer; the request fails and is on record."""
    scene = start_scene(["good.test:{port} private"], names={"good.test": answer})
    with scene.gate.connect() as conn:
        assert connect_dial(conn, b"good.test:%d" % scene.port).status == 502
    assert scene.dials.made == []
    assert [decision["verdict"] for decision in scene.gate.decisions()] == ["allow"]


@pytest.mark.threat("T-D2")
@every_name_door
def test_mapped_answers_beside_plain_ones_work_where_allowed(door: Door, start_scene: StartScene) -> None:
    """An IPv4-mapped address in a set of several is reached like any other once the rule says `private`."""
    for answer in (
        ["::ffff:127.0.0.1"],
        ["127.0.0.1", "127.0.0.1"],
        ["::ffff:127.0.0.1", "127.0.0.1"],
        ["127.0.0.1", "::ffff:127.0.0.1"],
    ):
        scene = start_scene(["good.test:{port} private"], names={"good.test": answer})
        outcome = ask(door, scene, "good.test")
        assert outcome is not None
        assert outcome.reached, answer
