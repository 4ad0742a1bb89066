"""The ways into the gateway, as values. Each asks for a host and a port and has one outcome.

An outcome is judged from the wire and from the audit log, which must agree; for a refusal the dials, the
server's connections and the server's bytes must show that nothing went out.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from exeat.errors import HostError
from exeat.policy import Address, Policy, Target, decide, split_authority
from tests.support.clients.hello import client_hello
from tests.support.clients.talk import connect_dial, read_reply, socks_dial
from tests.support.gateways.gate import read_all, read_until
from tests.support.gateways.scene import Mark, Scene, Seen, wait_until
from tests.support.origins.raw import PING, PONG, TLS_SEEN

Port = int | str
ALERT = b"\x15\x03\x03\x00\x02\x02\x31"  # TLS: fatal, access_denied


class Verdict(StrEnum):
    ALLOW = "allow"
    DENY = "deny"  # understood, and not allowed
    BAD = "bad"  # not understood, and so not asked any further


@dataclass(frozen=True)
class Outcome:
    """`reached`: the server's own answer came back. `code`: the HTTP status or the SOCKS reply."""

    verdict: Verdict
    reached: bool
    code: int
    seen: Seen


@dataclass(frozen=True)
class Door:
    """`carries`: can this door be asked for such a text at all? `exact`: does it tell DENY from BAD?"""

    name: str
    ask: Callable[[Scene, bytes, Port], Outcome]
    carries: Callable[[bytes, Port], bool]
    exact: bool = True

    def __str__(self) -> str:
        return self.name


# Judging


def _verdict_of_record(seen: Seen) -> Verdict:
    (decision,) = seen.decisions
    if decision["verdict"] == "allow":
        return Verdict.ALLOW
    return Verdict.BAD if decision["reason"] == "malformed" else Verdict.DENY


_STATUS = {200: Verdict.ALLOW, 502: Verdict.ALLOW, 504: Verdict.ALLOW, 403: Verdict.DENY, 400: Verdict.BAD}


def _judge(scene: Scene, mark: Mark, code: int, wire: frozenset[Verdict], *, reached: bool) -> Outcome:
    """The outcome of a question that leaves one decision; every witness must tell the same story."""
    seen = scene.since(mark, decisions=1)
    assert len(seen.decisions) == 1, f"more than one decision: {seen.decisions}"
    verdict = _verdict_of_record(seen)
    assert verdict in wire, f"the client was told {code}, the log says {seen.decisions[0]}"
    if verdict is Verdict.ALLOW:
        assert reached or seen.ends or code, "allowed, yet the server was not reached"
    else:
        assert_nothing_went_out(seen)
    return Outcome(verdict, reached, code, seen)


def assert_nothing_went_out(seen: Seen) -> None:
    assert seen.dials == (), f"refused, and yet dialled: {seen.dials}"
    assert seen.connections == 0, "refused, and yet the server was connected to"
    assert seen.received == 0, "refused, and yet the server got bytes"


def _ask_absolute(scene: Scene, host: bytes, port: Port) -> Outcome:
    authority = b"%b:%b" % (host, str(port).encode())
    mark = scene.mark()
    with scene.gate.connect() as conn:
        conn.sendall(b"GET http://%b/ HTTP/1.1\r\nHost: %b\r\n\r\n" % (authority, authority))
        reply = read_reply(conn)
        if reply.status == 400:
            assert read_all(conn) == b""  # ends only because the gateway closes
    reached = reply.status == 200
    assert not reached or reply.body == b"hello"
    return _judge(scene, mark, reply.status, frozenset([_STATUS[reply.status]]), reached=reached)


def _ask_connect(scene: Scene, host: bytes, port: Port) -> Outcome:
    mark = scene.mark()
    with scene.gate.connect() as conn:
        reply = connect_dial(conn, b"%b:%b" % (host, str(port).encode()))
        reached = reply.status == 200 and _ping(conn)
        if reply.status != 200:
            assert read_all(conn) == b""
    return _judge(scene, mark, reply.status, frozenset([_STATUS[reply.status]]), reached=reached)


def _ping(conn: socket.socket) -> bool:
    conn.sendall(PING)
    answer = read_until(conn, b"\n")
    assert answer == PONG, f"the tunnel is open, but leads to {answer[:100]!r}"
    return True


_SOCKS_WIRE = {
    0: frozenset([Verdict.ALLOW]),
    1: frozenset([Verdict.BAD, Verdict.ALLOW]),  # "general failure"
    2: frozenset([Verdict.DENY, Verdict.BAD]),  # "not allowed by ruleset"
    4: frozenset([Verdict.ALLOW]),
    5: frozenset([Verdict.ALLOW]),
    6: frozenset([Verdict.ALLOW]),
}


def _ask_socks(scene: Scene, host: bytes, port: Port, *, as_address: bool = False) -> Outcome:
    mark = scene.mark()
    with scene.gate.connect() as conn:
        code = socks_dial(conn, host, int(port), as_address=as_address)
        reached = code == 0 and _ping(conn)
        if code != 0:
            assert read_all(conn) == b""
    return _judge(scene, mark, code, _SOCKS_WIRE[code], reached=reached)


def _ask_socks_address(scene: Scene, host: bytes, port: Port) -> Outcome:
    return _ask_socks(scene, host, port, as_address=True)


# A program in a namespace, which knows of no gateway: it asks DNS, connects, and speaks. A refusal has no code there.


def _ask_redirect(scene: Scene, host: bytes, port: Port) -> Outcome:
    number = int(port)
    namespace = scene.inside
    mark = scene.mark()
    address = _as_address(host)
    if address is None:
        code, found = namespace.resolve(host)
        if not found:
            return _judge_unresolved(scene, mark, host, code)
        (where,) = found
    else:
        where = str(address)
    with namespace.connect(where, number) as conn:
        reached = _talk(conn, host, number, named=address is None)
    seen = scene.since(mark, decisions=1)
    assert len(seen.decisions) == 1, f"more than one decision: {seen.decisions}"
    verdict = _verdict_of_record(seen)
    if verdict is not Verdict.ALLOW:
        assert not reached
        assert_nothing_went_out(seen)
    elif not reached:
        seen = scene.since(mark, decisions=1, ends=1)
    return Outcome(verdict, reached, 0, seen)


def _talk(conn: socket.socket, host: bytes, port: int, *, named: bool) -> bool:
    """Begin as the port demands, and give whether the server answered."""
    name = host.removesuffix(b".")
    beginning, answer = {
        80: (b"GET / HTTP/1.1\r\nHost: %b\r\nConnection: close\r\n\r\n" % name, b"hello"),
        443: (client_hello(name if named else None), TLS_SEEN),
    }.get(port, (PING, PONG))
    try:
        conn.sendall(beginning)
    except ConnectionError:
        return False
    got = read_all(conn)
    assert got.endswith(answer) or got[:10] in (b"", b"HTTP/1.1 4", b"HTTP/1.1 5", ALERT), f"{got[:100]!r} came"
    return got.endswith(answer)


def _judge_unresolved(scene: Scene, mark: Mark, host: bytes, code: int) -> Outcome:
    """Refused by DNS already. A name that is asked for again within seconds gets no second line."""
    assert code != 0, "no address, and no error either"
    name = host.lower().removesuffix(b".")
    if name in scene.unresolved:
        scene.settle()  # there may be a line: then it is this question's
    seen = scene.since(mark, decisions=0 if name in scene.unresolved else 1)
    scene.unresolved.add(name)
    assert len(seen.decisions) <= 1
    assert all(decision["verdict"] == "deny" for decision in seen.decisions)
    assert_nothing_went_out(seen)
    return Outcome(Verdict.DENY, False, code, seen)


# Tunnels, to an allowed host


def open_connect(scene: Scene, host: bytes, port: int) -> socket.socket:
    conn = scene.gate.connect()
    assert connect_dial(conn, b"%b:%d" % (host, port)).status == 200
    return conn


def open_socks(scene: Scene, host: bytes, port: int) -> socket.socket:
    conn = scene.gate.connect()
    assert socks_dial(conn, host, port) == 0
    return conn


def open_redirect(scene: Scene, host: bytes, port: int) -> socket.socket:
    """By IPv6, as the door that asks DNS goes by IPv4."""
    address = _as_address(host)
    where = scene.gate.stand_in(host.decode("ascii"), ipv6=True) if address is None else str(address)
    return scene.inside.connect(where, port)


Opener = Callable[[Scene, bytes, int], socket.socket]
TUNNELS: tuple[Opener, ...] = (open_connect, open_socks, open_redirect)


# Inside a tunnel. It leads to the host itself where the policy allows that, and to good.test otherwise: so the
# text inside is either what was promised outside, or a second, hidden wish.


def _open_carrier(open_tunnel: Opener, scene: Scene, host: bytes, port: Port) -> socket.socket:
    if expected_verdict(scene.gate.gateway.policy, host, port) is Verdict.ALLOW:
        found, _ = split_authority(host.decode("ascii"))
        return open_tunnel(scene, found.authority.encode(), int(port))
    return open_tunnel(scene, b"good.test", scene.port)


def mark_inside(scene: Scene, before: Mark) -> Mark:
    """A mark behind the tunnel's own decision and connection, so that what follows is the inner question's."""
    wait_until(lambda: scene.origin.connections > before.connections, "the tunnel to reach the server")
    scene.since(before, decisions=1)
    return scene.mark()


def _ask_host_header(open_tunnel: Opener) -> Callable[[Scene, bytes, Port], Outcome]:
    def ask(scene: Scene, host: bytes, port: Port) -> Outcome:
        before = scene.mark()
        with _open_carrier(open_tunnel, scene, host, port) as conn:
            mark = mark_inside(scene, before)
            conn.sendall(b"GET / HTTP/1.1\r\nHost: %b:%b\r\n\r\n" % (host, str(port).encode()))
            reply = read_reply(conn)
            if reply.status != 200:
                assert read_all(conn) == b""
        seen = scene.since(mark, decisions=1)
        (decision,) = seen.decisions
        if reply.status == 200:
            assert reply.body == b"hello"
            assert decision["verdict"] == "allow"
            return Outcome(Verdict.ALLOW, True, 200, seen)
        assert (decision["verdict"], decision["status"]) == ("deny", reply.status)
        assert_nothing_went_out(seen)
        # 421 is how HTTP says "not through this tunnel": understood, and refused.
        return Outcome({421: Verdict.DENY, 400: Verdict.BAD}[reply.status], False, reply.status, seen)

    return ask


def _ask_sni(open_tunnel: Opener) -> Callable[[Scene, bytes, Port], Outcome]:
    def ask(scene: Scene, host: bytes, port: Port) -> Outcome:
        before = scene.mark()
        with _open_carrier(open_tunnel, scene, host, port) as conn:
            mark = mark_inside(scene, before)
            conn.sendall(client_hello(host))
            answer = read_all(conn)
        if answer == TLS_SEEN:
            seen = scene.since(mark)
            assert seen.decisions == ()
            return Outcome(Verdict.ALLOW, True, 0, seen)
        assert answer in (b"", ALERT), f"neither refused nor relayed: {answer[:100]!r}"
        seen = scene.since(mark, decisions=1)
        (decision,) = seen.decisions
        assert decision["verdict"] == "deny"
        assert_nothing_went_out(seen)
        return Outcome(Verdict.DENY, False, 0, seen)

    return ask


# Which texts each door can be asked for


def _in_url(host: bytes, port: Port) -> bool:
    return not any(byte in host for byte in b"/?")  # these end the authority of a URL; what follows is its path


def _in_socks(host: bytes, port: Port) -> bool:
    return len(host) <= 255 and isinstance(port, int) and 0 <= port < 65536


def _is_address(host: bytes, port: Port) -> bool:
    return _in_socks(host, port) and _as_address(host) is not None


def in_header(host: bytes, port: Port) -> bool:
    # White space around a field's value is no part of it, and a line's end is the field's end.
    return host[:1] not in (b" ", b"\t") and b"\r\n" not in host


def _in_sni(host: bytes, port: Port) -> bool:
    # No port is sent, and neither are brackets round an address, which have no business in a server name.
    return 0 < len(host) < 10_000


def _as_address(host: bytes) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address, if the text is one in the form that a request may carry."""
    try:
        found, _ = split_authority(host.decode("ascii"))
    except (HostError, UnicodeDecodeError):
        return None
    return found.ip if isinstance(found, Address) else None


def _is_redirected(host: bytes) -> bool:
    """Inside a namespace loopback is its own, and to some addresses the kernel connects no one."""
    ip = _as_address(host)
    if ip is None:
        return True
    own = ip.is_loopback or ip.is_unspecified or ip.is_multicast or str(ip) == "255.255.255.255"
    return not own and not (ip.version == 6 and ip.is_link_local)


def _in_redirect(host: bytes, port: Port) -> bool:
    if not isinstance(port, int) or not 0 < port < 65536 or not _is_redirected(host):
        return False
    if port == 53:
        return False  # answered as DNS, whoever it was meant for
    if _as_address(host) is not None:
        return True
    name = host.removesuffix(b".")
    if name.lower().rpartition(b".")[2] == b"localhost":
        return False  # loopback again
    return len(name) <= 253 and all(0 < len(label) < 64 for label in name.split(b"."))


def _in_redirected_header(host: bytes, port: Port) -> bool:
    return in_header(host, port) and _is_redirected(host)


def _in_redirected_sni(host: bytes, port: Port) -> bool:
    return _in_sni(host, port) and _is_redirected(host)


ABSOLUTE = Door("absolute", _ask_absolute, _in_url)
CONNECT = Door("connect", _ask_connect, lambda host, port: True)
SOCKS_NAME = Door("socks-name", _ask_socks, _in_socks)
SOCKS_ADDRESS = Door("socks-address", _ask_socks_address, _is_address)
REDIRECT = Door("redirect", _ask_redirect, _in_redirect, exact=False)
HOST_IN_CONNECT = Door("host-in-connect", _ask_host_header(open_connect), in_header)
HOST_IN_SOCKS = Door("host-in-socks", _ask_host_header(open_socks), in_header)
HOST_IN_REDIRECT = Door("host-in-redirect", _ask_host_header(open_redirect), _in_redirected_header)
SNI_IN_CONNECT = Door("sni-in-connect", _ask_sni(open_connect), _in_sni, exact=False)
SNI_IN_SOCKS = Door("sni-in-socks", _ask_sni(open_socks), _in_sni, exact=False)
SNI_IN_REDIRECT = Door("sni-in-redirect", _ask_sni(open_redirect), _in_redirected_sni, exact=False)

OUTER = (ABSOLUTE, CONNECT, SOCKS_NAME, SOCKS_ADDRESS, REDIRECT)
HOSTS = (HOST_IN_CONNECT, HOST_IN_SOCKS, HOST_IN_REDIRECT)
SERVER_NAMES = (SNI_IN_CONNECT, SNI_IN_SOCKS, SNI_IN_REDIRECT)
TEXT = (ABSOLUTE, CONNECT, *HOSTS)  # where the port is text too
ALL = (*OUTER, *HOSTS, *SERVER_NAMES)


def expected_verdict(policy: Policy, host: bytes, port: Port) -> Verdict:
    """What the policy says of a text, without any door."""
    try:
        found, number = split_authority(f"{host.decode('ascii')}:{port}")
    except (HostError, UnicodeDecodeError):
        return Verdict.BAD
    assert number is not None
    return Verdict.ALLOW if decide(policy, Target(found, number)).allowed else Verdict.DENY


def ask(door: Door, scene: Scene, host: str | bytes, port: Port | None = None) -> Outcome | None:
    """Ask, if this door can carry the text; None if it cannot."""
    raw = host.encode("utf-8") if isinstance(host, str) else host
    where = scene.port if port is None else port
    return door.ask(scene, raw, where) if door.carries(raw, where) else None


def assert_verdict(door: Door, scene: Scene, host: str | bytes, verdict: Verdict, port: Port | None = None) -> None:
    """The door has this verdict, and a refusal came before any DNS question."""
    outcome = ask(door, scene, host, port)
    if outcome is None:
        return
    if door.exact:
        assert outcome.verdict is verdict, f"{door} gives {outcome.verdict} for {host!r}, not {verdict}"
    else:
        refused = outcome.verdict is not Verdict.ALLOW
        assert refused == (verdict is not Verdict.ALLOW), f"{door} gives {outcome.verdict} for {host!r}"
    if outcome.verdict is not Verdict.ALLOW:
        assert outcome.seen.asked == (), f"{door} asked DNS for {outcome.seen.asked}"
