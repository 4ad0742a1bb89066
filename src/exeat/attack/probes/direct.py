"""Straight to an address, past the proxy: TCP, UDP and other transports, by IPv4 and IPv6 (A3, B1, C7, D5, E1, E8)."""

from __future__ import annotations

import os
import select
import socket
import urllib.request

from exeat.attack.model import BOUNDARIES, Group, Run, Scene, need
from exeat.attack.moves import WAIT_S, Options, ask, connected, request_for, say_tcp, say_udp

TCP = Group("tcp", "TCP, IPv4", BOUNDARIES)
IPV6 = Group("ipv6", "IPv6", BOUNDARIES)
UDP = Group("udp", "UDP and QUIC", BOUNDARIES)
TRANSPORTS = Group("transports", "SCTP, DCCP, UDP-Lite, MPTCP, SMC", BOUNDARIES)
ADDRESSES = Group("addresses", "special addresses", BOUNDARIES)


def _by_tcp(key: str = "v4", options: Options = ()) -> Run:
    return lambda scene: say_tcp(scene, need(scene.tcp, key), options=options)


def _by_udp(key: str = "v4", *, prefix: bytes = b"", suffix: bytes = b"", options: Options = ()) -> Run:
    return lambda scene: say_udp(scene, need(scene.udp, key), prefix=prefix, suffix=suffix, options=options)


TCP.probe("E1.tcp4", "TCP to 127.0.0.1 on the host")(_by_tcp())
TCP.probe("E1.tcp4-own", "TCP to the machine's own address")(_by_tcp("own4"))
TCP.probe("E1.tcp22", "TCP to port 22")(_by_tcp("ssh"))
TCP.probe("E1.tcp25", "TCP to port 25")(_by_tcp("smtp"))
TCP.probe("E1.tcp80", "TCP to port 80")(_by_tcp("http"))
TCP.probe("E1.tcp443", "TCP to port 443, not TLS")(_by_tcp("https"))


@TCP.probe("E8.no-proxy", "a client told to use no proxy (NO_PROXY=*)")
def no_proxy(scene: Scene) -> str:
    os.environ["NO_PROXY"] = os.environ["no_proxy"] = "*"
    host, port = scene.tcp["v4"]
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://{host}:{port}/{scene.token}", timeout=WAIT_S) as answer:
        return f"status {answer.status}"


@TCP.probe("B1.host-header", "TCP to a forbidden address, allowed name in the Host header")
def host_header(scene: Scene) -> str:
    return say_tcp(scene, scene.tcp["v4"], host=f"{scene.allowed[0]}:{scene.allowed[1]}")


@TCP.probe("B1.host-port", "TCP to the forbidden address of an allowed name, its port in the Host header")
def host_port(scene: Scene) -> str:
    return say_tcp(scene, scene.tcp["v4"], host=f"{scene.allowed[0]}:{scene.tcp['v4'][1]}")


@TCP.probe("A9.tcp-port", "TCP to the allowed host, another port")
def other_port(scene: Scene) -> str:
    port = scene.tcp["v4"][1]
    if scene.outside:
        return say_tcp(scene, (scene.allowed_address, port))
    found = socket.getaddrinfo(scene.allowed[0], port, socket.AF_INET, socket.SOCK_STREAM)  # noqa: TID251
    return say_tcp(scene, (str(found[0][4][0]), port), host=f"{scene.allowed[0]}:{port}")


@TCP.probe("E1.raw-bytes", "TCP that is no HTTP and no TLS")
def raw_bytes(scene: Scene) -> str:
    with connected(scene.tcp["v4"]) as sock:
        return ask(sock, b"\x00\x01\x02" + scene.token.encode() + b"\n")


@TCP.probe("E1.fast-open", "data in the first segment (TCP Fast Open)")
def fast_open(scene: Scene) -> str:
    place = scene.tcp["v4"]
    with socket.socket() as sock:
        # With a time limit Python's sockets do not block, and then the call would not wait for the handshake.
        sock.sendto(request_for(scene, place), socket.MSG_FASTOPEN, place)
        sock.settimeout(WAIT_S)
        return f"answer {sock.recv(1000)[:20]!r}"


@TCP.probe("E1.non-blocking", "a connect that does not wait")
def non_blocking(scene: Scene) -> str:
    place = scene.tcp["v4"]
    with socket.socket() as sock:
        sock.setblocking(False)
        sock.connect_ex(place)
        select.select([], [sock], [], WAIT_S)
        return ask(sock, request_for(scene, place))


@TCP.probe("E1.source-port", "a source port of its own choice, bound to another loopback address")
def source_port(scene: Scene) -> str:
    place = scene.tcp["v4"]
    with socket.socket() as sock:
        sock.settimeout(WAIT_S)
        sock.bind(("127.0.0.9", 0))
        sock.connect(place)
        return ask(sock, request_for(scene, place))


TCP.probe("E1.bind-device", "a socket tied to the interface lo")(
    _by_tcp(options=((socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo\0"),))
)
TCP.probe("E2.mark", "a packet mark (SO_MARK), as rules often exempt one")(
    _by_tcp(options=((socket.SOL_SOCKET, socket.SO_MARK, 1),))
)
TCP.probe("E1.priority", "a type of service and a priority that rules may pass")(
    _by_tcp(options=((socket.IPPROTO_IP, socket.IP_TOS, 0x10),))
)


# IPv6, which rules written for IPv4 forget


IPV6.probe("E1.tcp6", "TCP to ::1 on the host")(_by_tcp("v6"))
IPV6.probe("E1.tcp6-own", "TCP to the machine's own IPv6 address")(_by_tcp("own6"))
IPV6.probe("E1.tcp6-link", "TCP to the machine's own link-local address")(_by_tcp("link6"))


@IPV6.probe("E1.tcp6-mapped", "TCP to 127.0.0.1 from an IPv6 socket (::ffff:127.0.0.1)")
def tcp_mapped(scene: Scene) -> str:
    need(scene.tcp, "v6")
    host, port = scene.tcp["v4"]
    return say_tcp(scene, (f"::ffff:{host}", port))


IPV6.probe("E1.udp6", "UDP to ::1 on the host")(_by_udp("v6"))
IPV6.probe("E1.udp6-own", "UDP to the machine's own IPv6 address")(_by_udp("own6"))


@IPV6.probe("E1.udp6-mapped", "UDP to 127.0.0.1 from an IPv6 socket")
def udp_mapped(scene: Scene) -> str:
    need(scene.udp, "v6")
    host, port = scene.udp["v4"]
    return say_udp(scene, (f"::ffff:{host}", port))


IPV6.probe("E1.multicast6", "IPv6 multicast")(_by_udp("multicast6"))


# UDP and what runs over it


UDP.probe("E1.udp4", "UDP to 127.0.0.1 on the host")(_by_udp())
UDP.probe("E1.udp4-own", "UDP to the machine's own address")(_by_udp("own4"))


@UDP.probe("E1.udp4-connected", "UDP on a connected socket, written to as a file")
def udp_connected(scene: Scene) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect(scene.udp["v4"])
        os.write(sock.fileno(), scene.token.encode())
    return "sent"


UDP.probe("C7.quic", "a QUIC Initial packet to port 443")(
    _by_udp("quic", prefix=b"\xc3\x00\x00\x00\x01\x08" + bytes(8) + b"\x00" + bytes(1180))
)
UDP.probe("E1.udp123", "UDP to port 123 (time)")(_by_udp("ntp", prefix=b"\x23" + bytes(47)))
UDP.probe("E1.udp5353", "UDP to port 5353 (mDNS)")(_by_udp("mdns"))
UDP.probe("E1.fragments", "a UDP datagram that must be cut into fragments")(
    _by_udp(
        suffix=bytes(60_000),
        options=(
            (socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 18),
            (socket.IPPROTO_IP, 10, 0),  # IP_MTU_DISCOVER: fragments are welcome
        ),
    )
)


@UDP.probe("E1.udp-source53", "UDP from source port 53, as if it were an answer")
def source53(scene: Scene) -> str:
    return say_udp(scene, scene.udp["v4"], source=("127.0.0.1", 53))


# Transports that rules for TCP and UDP do not name


def _by_stream(key: str, kind: int, protocol: int) -> Run:
    def say(scene: Scene) -> str:
        with connected(need(scene.other, key), kind=kind, protocol=protocol) as sock:
            return ask(sock, scene.token.encode())

    return say


TRANSPORTS.probe("E1.sctp", "SCTP")(_by_stream("sctp", socket.SOCK_STREAM, 132))
TRANSPORTS.probe("E1.dccp", "DCCP")(_by_stream("dccp", 6, 33))


@TRANSPORTS.probe("E1.udplite", "UDP-Lite")
def udplite(scene: Scene) -> str:
    return say_udp(scene, need(scene.other, "udplite"), protocol=136)


def _as_tcp(family: int, protocol: int) -> Run:
    def say(scene: Scene) -> str:
        place = scene.tcp["v4"]
        with connected(place, family=family, protocol=protocol) as sock:
            return ask(sock, request_for(scene, place))

    return say


TRANSPORTS.probe("E1.mptcp", "Multipath TCP")(_as_tcp(socket.AF_INET, 262))
TRANSPORTS.probe("E6.smc", "SMC, which falls back to TCP")(_as_tcp(43, 0))


# Addresses that mean something else than they seem to


@ADDRESSES.probe("A3.zero4", "0.0.0.0, which the kernel takes for loopback")
def zero4(scene: Scene) -> str:
    return say_tcp(scene, ("0.0.0.0", scene.tcp["v4"][1]))


@ADDRESSES.probe("A3.zero6", ":: (the same, IPv6)")
def zero6(scene: Scene) -> str:
    return say_tcp(scene, ("::", need(scene.tcp, "v6")[1]))


@ADDRESSES.probe("A3.zero-mapped", "::ffff:0.0.0.0")
def zero_mapped(scene: Scene) -> str:
    need(scene.tcp, "v6")
    return say_tcp(scene, ("::ffff:0.0.0.0", scene.tcp["v4"][1]))


ADDRESSES.probe("A3.net127", "another address of 127.0.0.0/8")(_by_tcp("net127"))
# Only where the harness itself holds that address: the metadata of a real cloud is not asked for.
ADDRESSES.probe("A3.metadata", "the metadata address 169.254.169.254")(_by_tcp("metadata"))


@ADDRESSES.probe("A3.udp-zero", "UDP to 0.0.0.0")
def udp_zero(scene: Scene) -> str:
    return say_udp(scene, ("0.0.0.0", scene.udp["v4"][1]))


ADDRESSES.probe("A3.broadcast", "broadcast, on loopback's network")(
    _by_udp("broadcast", options=((socket.SOL_SOCKET, socket.SO_BROADCAST, 1),))
)
ADDRESSES.probe("A3.multicast", "multicast, on loopback")(
    _by_udp("multicast4", options=((socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1")),))
)
