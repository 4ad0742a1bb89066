"""TCP by IPv4: any port, any way of connecting (E1, E8)."""

from __future__ import annotations

import os
import select
import socket
import struct
import urllib.request

from exeat.attack.model import BOUNDARIES, Group, Scene, need
from exeat.attack.moves import WAIT_S, ask, family_of, request_for, say_tcp

GROUP = Group("tcp", "TCP, IPv4", BOUNDARIES)
_NO_LOW = "this user cannot open well-known ports"


@GROUP.probe("E1.tcp4", "TCP to 127.0.0.1 on the host")
def loopback(scene: Scene) -> str:
    return say_tcp(scene, scene.tcp["v4"])


@GROUP.probe("E1.tcp4-own", "TCP to the machine's own address")
def own(scene: Scene) -> str:
    return say_tcp(scene, need(scene.tcp, "own4", "the machine has no IPv4 address besides loopback"))


@GROUP.probe("E1.tcp22", "TCP to port 22")
def ssh(scene: Scene) -> str:
    return say_tcp(scene, need(scene.tcp, "ssh", _NO_LOW))


@GROUP.probe("E1.tcp25", "TCP to port 25")
def smtp(scene: Scene) -> str:
    return say_tcp(scene, need(scene.tcp, "smtp", _NO_LOW))


@GROUP.probe("E1.tcp80", "TCP to port 80")
def http(scene: Scene) -> str:
    return say_tcp(scene, need(scene.tcp, "http", _NO_LOW))


@GROUP.probe("E1.tcp443", "TCP to port 443, not TLS")
def https(scene: Scene) -> str:
    return say_tcp(scene, need(scene.tcp, "https", _NO_LOW))


@GROUP.probe("E8.no-proxy", "a client told to use no proxy (NO_PROXY=*)")
def no_proxy(scene: Scene) -> str:
    os.environ["NO_PROXY"] = os.environ["no_proxy"] = "*"
    host, port = scene.tcp["v4"]
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://{host}:{port}/{scene.token}", timeout=WAIT_S) as answer:
        return f"status {answer.status}"


@GROUP.probe("B1.host-header", "TCP to a forbidden address, allowed name in the Host header")
def host_header(scene: Scene) -> str:
    return say_tcp(scene, scene.tcp["v4"], host=f"{scene.allowed[0]}:{scene.allowed[1]}")


@GROUP.probe("B1.host-port", "TCP to the forbidden address of an allowed name, its port in the Host header")
def host_port(scene: Scene) -> str:
    return say_tcp(scene, scene.tcp["v4"], host=f"{scene.allowed[0]}:{scene.tcp['v4'][1]}")


@GROUP.probe("A9.tcp-port", "TCP to the allowed host, another port")
def other_port(scene: Scene) -> str:
    port = scene.tcp["v4"][1]
    if scene.outside:
        return say_tcp(scene, (scene.allowed_address, port))
    found = socket.getaddrinfo(scene.allowed[0], port, socket.AF_INET, socket.SOCK_STREAM)  # noqa: TID251
    return say_tcp(scene, (str(found[0][4][0]), port), host=f"{scene.allowed[0]}:{port}")


@GROUP.probe("E1.raw-bytes", "TCP that is no HTTP and no TLS")
def raw_bytes(scene: Scene) -> str:
    with socket.socket() as sock:
        sock.settimeout(WAIT_S)
        sock.connect(scene.tcp["v4"])
        return ask(sock, b"\x00\x01\x02" + scene.token.encode() + b"\n")


@GROUP.probe("E1.fast-open", "data in the first segment (TCP Fast Open)")
def fast_open(scene: Scene) -> str:
    place = scene.tcp["v4"]
    with socket.socket() as sock:
        # With a time limit Python's sockets do not block, and then the call would not wait for the handshake.
        sock.sendto(request_for(scene, place), socket.MSG_FASTOPEN, place)
        sock.settimeout(WAIT_S)
        return f"answer {sock.recv(1000)[:20]!r}"


@GROUP.probe("E1.non-blocking", "a connect that does not wait")
def non_blocking(scene: Scene) -> str:
    place = scene.tcp["v4"]
    with socket.socket() as sock:
        sock.setblocking(False)
        sock.connect_ex(place)
        select.select([], [sock], [], WAIT_S)
        return ask(sock, request_for(scene, place))


@GROUP.probe("E1.source-port", "a source port of its own choice, bound to another loopback address")
def source(scene: Scene) -> str:
    place = scene.tcp["v4"]
    with socket.socket(family_of(place[0])) as sock:
        sock.settimeout(WAIT_S)
        sock.bind(("127.0.0.9", 0))
        sock.connect(place)
        return ask(sock, request_for(scene, place))


@GROUP.probe("E1.bind-device", "a socket tied to the interface lo")
def bind_device(scene: Scene) -> str:
    return say_tcp(scene, scene.tcp["v4"], options=((socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo\0"),))


@GROUP.probe("E2.mark", "a packet mark (SO_MARK), as rules often exempt one")
def mark(scene: Scene) -> str:
    one = struct.pack("@I", 1)
    return say_tcp(scene, scene.tcp["v4"], options=((socket.SOL_SOCKET, socket.SO_MARK, one),))


@GROUP.probe("E1.priority", "a type of service and a priority that rules may pass")
def priority(scene: Scene) -> str:
    service = struct.pack("@i", 0x10)
    return say_tcp(scene, scene.tcp["v4"], options=((socket.IPPROTO_IP, socket.IP_TOS, service),))
