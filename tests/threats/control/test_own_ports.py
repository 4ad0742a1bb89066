"""The gateway is no way back into itself, nor to its own controls."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.support.clients.talk import read_exactly, read_reply
from tests.support.fixtures.gateways import StartScene, StartServing
from tests.support.gateways.doors import OUTER, Door, Verdict, ask
from tests.support.gateways.serving import Serving
from tests.support.jails.networks import own_addresses
from tests.support.origins.raw import RawOrigin

every_outer_door = pytest.mark.parametrize("door", OUTER, ids=str)

# Each rule lists the place outright, on every port: whoever writes it means other ports of this machine.
HERE = {
    "127.0.0.1": ["127.0.0.1:*"],
    "127.0.0.2": ["127.0.0.0/8:*"],
    "127.255.255.254": ["127.0.0.0/8:* private"],
    "[::1]": ["[::1]:*"],
    "[::ffff:127.0.0.1]": ["127.0.0.1:*"],
    "[::127.0.0.1]": ["[::127.0.0.1]:*"],
    "0.0.0.0": ["0.0.0.0:*"],
    "[::]": ["[::]:*"],
    "localhost": ["localhost:* private"],
    "LOCALHOST.": ["localhost:* private"],
    "loop.test": ["*:* private force"],
    "six.test": ["six.test:* private"],
    "both.test": ["both.test:* private"],
    "mapped.test": ["mapped.test:*"],
    "nothing.test": ["nothing.test:* private"],
}
NAMES = {
    "localhost": ["127.0.0.1"],
    "loop.test": ["127.0.0.1"],
    "six.test": ["::1"],
    "both.test": ["93.184.215.14", "127.0.0.1"],
    "nothing.test": ["0.0.0.0"],
}


@pytest.mark.threat("T-E4")
@every_outer_door
@pytest.mark.parametrize("host", HERE)
def test_the_gateways_own_port_is_never_a_destination(host: str, door: Door, start_scene: StartScene) -> None:
    """Though a rule lists it with all ports, by address, network, name or mapping. Control: another port."""
    scene = start_scene([*HERE[host], "good.test:1"], names=dict(NAMES), hosts={"mapped.test": "127.0.0.1"})
    connections = scene.gate.gateway.counters.connections
    outcome = ask(door, scene, host, scene.gate.port)
    if outcome is None:
        return  # not an address
    assert outcome.verdict is Verdict.DENY
    assert outcome.seen.decisions[0]["reason"] == "own-address"
    assert scene.gate.gateway.counters.connections == connections + 1, "the gateway was connected to by itself"
    control = ask(door, scene, host, scene.port)
    assert control is not None
    assert control.verdict is Verdict.ALLOW
    assert len(control.seen.dials) == 1


@pytest.mark.threat("T-E4")
@every_outer_door
def test_the_machines_other_addresses_lead_nowhere_either(door: Door, start_scene: StartScene) -> None:
    """A gateway may listen on every address of the machine, so its port is closed on all of them."""
    for address in own_addresses():
        text = f"[{address}]" if ":" in address else address
        scene = start_scene([f"{text}:*", "good.test:1"])
        outcome = ask(door, scene, text, scene.gate.port)
        assert outcome is not None
        assert outcome.verdict is Verdict.DENY
        control = ask(door, scene, text, scene.port)
        assert control is not None
        assert control.seen.dials == (((address,), scene.port),)


@pytest.mark.threat("T-E4")
@every_outer_door
def test_without_a_rule_it_is_denied_like_any_address(door: Door, start_scene: StartScene) -> None:
    """The plain case."""
    scene = start_scene()
    for host in ("127.0.0.1", "[::1]", "0.0.0.0", "localhost"):
        outcome = ask(door, scene, host, scene.gate.port)
        assert outcome is None or outcome.verdict is Verdict.DENY


# E5


def listening_ports(pid: int) -> set[int]:
    """The TCP ports on which a process listens, from the kernel's tables."""
    inodes = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            inodes.add(str(entry.readlink()))
        except OSError:
            pass
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                found.add(int(fields[1].rpartition(":")[2], 16))
    return found


def healthy(host: str, port: int) -> bool:
    with socket.create_connection((host, port), 10) as conn:
        conn.sendall(b"GET /healthz HTTP/1.1\r\nHost: admin\r\n\r\n")
        return read_reply(conn).body == b"ok\n"


def through_doors(server: Serving, host: str, port: int) -> list[int]:
    """What a client is told by HTTP, CONNECT and SOCKS when it asks for that place."""
    codes = []
    authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    for line in (f"GET http://{authority}/healthz", f"CONNECT {authority}"):
        with socket.create_connection(("127.0.0.1", server.port), 10) as conn:
            conn.sendall(f"{line} HTTP/1.1\r\nHost: {authority}\r\n\r\n".encode())
            codes.append(read_reply(conn).status)
    with socket.create_connection(("127.0.0.1", server.port), 10) as conn:
        name = host.encode() if ":" not in host else f"[{host}]".encode()
        conn.sendall(b"\x05\x01\x00\x05\x01\x00\x03" + bytes([len(name)]) + name + port.to_bytes(2))
        codes.append(read_exactly(conn, 12)[3])
    return codes


WIDE = (
    "--allow",
    "127.0.0.1:*",
    "--allow",
    "0.0.0.0:*",
    "--allow",
    "localhost:* private",
    "--add-host",
    "admin.test:127.0.0.1",
    "--allow",
    "admin.test:*",
)


@pytest.mark.threat("T-E5")
@pytest.mark.parametrize("workers", ["1", "2"])
def test_the_admin_port_is_out_of_reach(workers: str, serve: StartServing) -> None:
    """Health and metrics answer directly, and through no door, whatever the rules list. Control: another port."""
    server = serve("--admin", "127.0.0.1:0", "--workers", workers, *WIDE)
    admin = server.admin_port
    assert healthy("127.0.0.1", admin)
    for host in ("127.0.0.1", "0.0.0.0", "admin.test", "localhost"):
        assert through_doors(server, host, admin) == [403, 403, 2], host
        assert through_doors(server, host, server.port) == [403, 403, 2], host
    with RawOrigin() as origin:
        for host in ("127.0.0.1", "admin.test"):
            assert through_doors(server, host, origin.port) == [200, 200, 0], host


@pytest.mark.threat("T-E5")
def test_the_admin_port_is_out_of_reach_when_the_system_picks_it(serve: StartServing) -> None:
    """Port 0 means any free one, which is then as closed as one that was named."""
    server = serve("--admin", "127.0.0.1:0", *WIDE)
    (admin,) = listening_ports(server.process.pid) - {server.port}
    assert healthy("127.0.0.1", admin)
    assert through_doors(server, "127.0.0.1", admin) == [403, 403, 2]


@pytest.mark.threat("T-E5")
def test_the_admin_port_is_out_of_reach_through_the_machines_own_address(serve: StartServing) -> None:
    """An admin address that listens everywhere is closed everywhere."""
    addresses = own_addresses()
    if not addresses:
        pytest.skip("this machine has no address but loopback")
    rules = [
        part for address in addresses for part in ("--allow", f"[{address}]:*" if ":" in address else f"{address}:*")
    ]
    server = serve("--admin", "0.0.0.0:0", *WIDE, *rules)
    admin = server.admin_port
    for address in addresses:
        assert through_doors(server, address, admin) == [403, 403, 2]


@pytest.mark.threat("T-E5")
def test_a_path_of_the_gateway_itself_is_no_admin_page(serve: StartServing) -> None:
    """Asking the proxy port for /metrics, or for an absolute URL of its own, reveals nothing."""
    server = serve("--admin", "127.0.0.1:0")
    for target in ("/metrics", "/healthz", f"http://127.0.0.1:{server.port}/metrics"):
        with socket.create_connection(("127.0.0.1", server.port), 10) as conn:
            conn.sendall(f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n\r\n".encode())
            reply = read_reply(conn)
        assert reply.status in (400, 403)
        assert b"exeat_" not in reply.body
