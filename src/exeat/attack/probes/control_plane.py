"""The gateway itself as a target: its administration, its own ports, loops (E4, E5)."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

from exeat.attack.model import (
    BOUNDARIES,
    EVERYWHERE,
    OWN_NETWORK,
    Absent,
    Evidence,
    Group,
    Place,
    Scene,
    Stopped,
    apart,
)
from exeat.attack.moves import (
    ask,
    authority_of,
    connect_through,
    connected,
    proxy_of,
    request_for,
    say_connect,
    say_in_every_language,
    say_socks,
    say_tcp,
)

GROUP = Group("control-plane", "the gateway's own ports", EVERYWHERE)


@GROUP.probe("E5.admin", "an administration port on the host, directly", stops=BOUNDARIES)
def admin(scene: Scene) -> str:
    return say_tcp(scene, scene.tcp["admin"])


@GROUP.probe("E5.admin-connect", "an administration port by CONNECT")
def admin_connect(scene: Scene) -> str:
    return say_connect(scene, authority_of(scene.tcp["admin"]))


@GROUP.probe("E5.admin-socks", "an administration port by SOCKS5")
def admin_socks(scene: Scene) -> str:
    host, port = scene.tcp["admin"]
    return say_socks(scene, b"\x01" + socket.inet_aton(host), port)


@GROUP.probe("E4.loop", "CONNECT to the gateway's own port", evidence=Evidence.DEED)
def loop(scene: Scene) -> str:
    proxy = proxy_of(scene)
    with connected(proxy.place) as sock:
        connect_through(sock, authority_of(proxy.place), proxy.header)
    return "a tunnel from the gateway to itself"


@GROUP.probe("E4.loop-nested", "through the gateway to the gateway, and from there on")
def loop_nested(scene: Scene) -> str:
    proxy = proxy_of(scene)
    target = scene.tcp["v4"]
    with connected(proxy.place) as sock:
        connect_through(sock, authority_of(proxy.place), proxy.header)
        connect_through(sock, authority_of(target), proxy.header)
        return ask(sock, request_for(scene, target))


@GROUP.probe("E4.redirect-as-proxy", "proxy requests on a connection to a forbidden address", stops=BOUNDARIES)
def redirect_as_proxy(scene: Scene) -> str:
    """Inside, any connection ends at the gateway: a door that also speaks proxy there must judge all the same."""
    target = scene.tcp["v4"]
    with connected(scene.proxy or target) as sock:
        connect_through(sock, authority_of(target))
        return ask(sock, request_for(scene, target))


@GROUP.probe("E4.listeners", "every port that listens inside, asked in every language", stops=OWN_NETWORK)
def listeners(scene: Scene) -> str:
    """The gateway's own listeners, by their own ports and not by a redirect. Outside only the open proxy is asked."""
    if scene.proxy is None and not apart(scene, "net"):
        raise Absent("the ports of this network are the host's")
    places = [scene.proxy] if scene.proxy is not None else _listening()
    said = say_in_every_language(scene, places)
    return f"{len(places)} ports; {said}"


def _listening() -> list[Place]:
    """TCP listeners of this network namespace."""
    found: list[Place] = []
    for name, host in (("tcp", "127.0.0.1"), ("tcp6", "::1")):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == "0A":
                    found.append((host, int(words[1].rpartition(":")[2], 16)))
    return found


@GROUP.probe("E4.allowed-as-proxy", "a forbidden URL on a connection to the allowed host", stops=BOUNDARIES)
def allowed_as_proxy(scene: Scene) -> str:
    if scene.proxy is not None:
        place = scene.proxy
    else:
        found = socket.getaddrinfo(*scene.allowed, socket.AF_INET, socket.SOCK_STREAM)  # noqa: TID251
        place = (str(found[0][4][0]), int(found[0][4][1]))
    target = authority_of(scene.tcp["v4"])
    with connected(place) as sock:
        note = ask(sock, f"GET http://{target}/{scene.token} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
    if "200" not in note:
        raise Stopped(note)
    return note
