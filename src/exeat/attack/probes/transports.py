"""Transports that rules for TCP and UDP do not name (E1, E6)."""

from __future__ import annotations

import socket

from exeat.attack.model import BOUNDARIES, Group, Scene, need
from exeat.attack.moves import WAIT_S, ask, request_for, say_udp

GROUP = Group("transports", "SCTP, DCCP, UDP-Lite, MPTCP, SMC", BOUNDARIES)


@GROUP.probe("E1.sctp", "SCTP")
def sctp(scene: Scene) -> str:
    place = need(scene.other, "sctp", "no SCTP in this kernel")
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, 132) as sock:
        sock.settimeout(WAIT_S)
        sock.connect(place)
        return ask(sock, scene.token.encode())


@GROUP.probe("E1.dccp", "DCCP")
def dccp(scene: Scene) -> str:
    place = need(scene.other, "dccp", "no DCCP in this kernel")
    with socket.socket(socket.AF_INET, 6, 33) as sock:
        sock.settimeout(WAIT_S)
        sock.connect(place)
        return ask(sock, scene.token.encode())


@GROUP.probe("E1.udplite", "UDP-Lite")
def udplite(scene: Scene) -> str:
    return say_udp(scene, need(scene.other, "udplite", "no UDP-Lite in this kernel"), protocol=136)


@GROUP.probe("E1.mptcp", "Multipath TCP")
def mptcp(scene: Scene) -> str:
    place = scene.tcp["v4"]
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262) as sock:
        sock.settimeout(WAIT_S)
        sock.connect(place)
        return ask(sock, request_for(scene, place))


@GROUP.probe("E6.smc", "SMC, which falls back to TCP")
def smc(scene: Scene) -> str:
    place = scene.tcp["v4"]
    with socket.socket(43, socket.SOCK_STREAM, 0) as sock:
        sock.settimeout(WAIT_S)
        sock.connect(place)
        return ask(sock, request_for(scene, place))
