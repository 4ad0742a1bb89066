"""The targets hear what is sent to them, and leave nothing behind."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from exeat.attack.model import Scene
from exeat.attack.outside.addresses import own_ipv4, own_ipv6, second_paths
from exeat.attack.outside.open_proxy import OpenProxy
from exeat.attack.outside.targets import Targets, open_targets

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the corpus is written for Linux")


@pytest.fixture
def targets() -> Iterator[Targets]:
    with open_targets(sys.executable) as opened:
        yield opened


def test_what_arrives_is_known_by_its_mark(targets: Targets) -> None:
    """A token is found at the target that it reached, and at no other; what was before is forgotten."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.sendto(b"see TOKEN-1 here", targets.scene.udp["v4"])
    assert targets.sinks.wait_for("token-1", 5) == ["udp v4"]
    assert targets.reached("token-1") == ["udp v4"]
    assert targets.reached("token-2") == []
    targets.sinks.forget()
    assert targets.reached("token-1") == []


def test_the_allowed_host_is_no_escape(targets: Targets) -> None:
    with socket.create_connection(("127.0.0.1", targets.scene.allowed[1]), timeout=5) as sock:
        sock.sendall(b"token-3")
        assert b"200" in sock.recv(100)
    assert targets.sinks.wait_for("token-3", 5) == ["allowed"]
    assert targets.reached("token-3") == []


def test_settling_waits_for_what_was_sent(targets: Targets) -> None:
    """What was sent before is known afterwards, without naming a time."""
    for number in range(50):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.sendto(f"many-{number};".encode(), targets.scene.udp["v4"])
    targets.sinks.settle()
    assert all(targets.reached(f"many-{number};") for number in range(50))


def test_nothing_is_left() -> None:
    """Sockets by path, in all their places, go with the context."""
    with open_targets(sys.executable) as opened:
        paths = [*opened.scene.paths.values(), opened.scene.datagram_path]
        assert all(Path(path).is_socket() for path in paths)
        folder = opened.scene.folder
    assert not any(Path(path).exists() for path in paths)
    assert not Path(folder).exists()


def test_own_addresses_can_be_bound() -> None:
    """They are this machine's, and none of them is loopback."""
    for address in own_ipv4():
        assert not address.startswith("127.")
        with socket.socket() as sock:
            sock.bind((address, 0))
    assert all(address != "::1" for address, _ in own_ipv6())


def test_a_file_has_no_second_path_by_itself(tmp_path: Path) -> None:
    """Each path that is named leads to the same file."""
    file = tmp_path / "file"
    file.touch()
    assert all(Path(path).samefile(file) for path in second_paths(str(file)))


def test_the_open_proxy_does_not_leave_the_machine() -> None:
    """Open, but not to the world: a test network's address is not dialled."""
    proxy = OpenProxy({})
    try:
        with socket.create_connection(proxy.place, timeout=5) as sock:
            sock.sendall(b"CONNECT 192.0.2.123:80 HTTP/1.1\r\n\r\n")
            assert sock.recv(100) == b""
    finally:
        proxy.close()


def test_a_scene_tells_where_everything_is(targets: Targets) -> None:
    """What every Linux has is always there, so that no probe loses its control unseen."""
    scene = targets.scene
    assert isinstance(scene, Scene)
    assert {"v4", "admin", "net127"} <= set(scene.tcp)
    assert {"v4", "broadcast"} <= set(scene.udp)
    assert {"tmp", "relative", "descriptor", "moved", "linked"} <= set(scene.paths)
    assert set(scene.abstract) == {"stream", "dgram", "seqpacket"}
    assert scene.victim["pid"] > 0
    assert len(targets.held) == 5
