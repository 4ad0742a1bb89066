"""Packet rules around a uid, in networks of the test's own, against programs that no system call filter holds."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from exeat.errors import JailError
from exeat.jail.limits import own_user
from exeat.jail.net import fence, nftables
from exeat.jail.net.network import open_sockets
from exeat.jail.select import examine
from tests.support.gateways.scene import wait_until
from tests.support.jails.networks import PORT, Greeter, Networks
from tests.support.runs.running import NOBODY, PYTHON, as_user

pytestmark = [pytest.mark.thorough, pytest.mark.skipif(os.geteuid() != 0, reason="the nft jail needs root")]
OTHER = 12_345  # a uid that no rule is about

# Says what came of it: the word that a server said, or the name of an error.
CONNECT = """
import socket, sys
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
with socket.socket(family) as s:
    s.settimeout(float(sys.argv[3]))
    try:
        s.connect((sys.argv[1], int(sys.argv[2])))
        print(s.recv(100).decode() or "closed", end="")
    except OSError as error:
        print(type(error).__name__, end="")
"""
SEND = """
import socket, sys
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
with socket.socket(family, socket.SOCK_DGRAM) as s:
    try:
        s.sendto(b"datagram", (sys.argv[1], int(sys.argv[2])))
        print("sent", end="")
    except OSError as error:
        print(type(error).__name__, end="")
"""
ADDRESSES = ["203.0.113.9", "2001:db8::9", "::ffff:203.0.113.9"]


def neighbour(address: str) -> str:
    """Another one for the control, whose last packets are then not mistaken for the probe's."""
    return f"{address}9" if address.endswith("9") else address


class Fenced:
    """A machine with a fence up, and servers: of the world, of the machine's loopback, and the fence's own."""

    def __init__(self, networks: Networks) -> None:
        self.networks = networks
        self.machine = networks.machine
        self.fence = self.machine.make(fence.raise_fence)
        self.sockets = self.machine.make(lambda: fence.open_fenced_sockets(self.fence))
        self.world = Greeter(networks.world, PORT, "world")
        self.loopback = Greeter(networks.machine, PORT, "loopback", host="127.0.0.1")
        self.gateways = [Greeter(networks.machine, 0, "gateway", listener=each) for each in self.sockets.tcp]
        self.port = self.sockets.tcp[0].getsockname()[1]
        self.dns_port = self.sockets.dns_udp[0].getsockname()[1]
        networks.witness.packets()

    def run(self, program: str, *arguments: object, uid: int) -> str:
        return finish(self.start(program, *arguments, uid=uid))

    def start(self, program: str, *arguments: object, uid: int) -> subprocess.Popen[str]:
        as_uid = ["setpriv", "--reuid", str(uid), "--regid", str(uid), "--clear-groups"]
        command = [PYTHON, "-I", "-c", program, *map(str, arguments)]
        return subprocess.Popen([*self.machine.before, *as_uid, *command], stdout=subprocess.PIPE, text=True)

    def connect(self, host: str, port: int, *, uid: int, patience_s: float = 10) -> str:
        return self.run(CONNECT, host, port, patience_s, uid=uid)

    def send(self, host: str, port: int, *, uid: int) -> str:
        return self.run(SEND, host, port, uid=uid)

    def close(self) -> None:
        for each in (self.world, self.loopback, *self.gateways):
            each.close()
        self.sockets.close()
        self.fence.remove()
        assert self.machine.tables() == []


def finish(child: subprocess.Popen[str]) -> str:
    with child:
        out, _ = child.communicate(timeout=40)
    assert child.returncode == 0
    return out


@pytest.fixture
def networks() -> Iterator[Networks]:
    made = Networks()
    yield made
    made.close()


@pytest.fixture
def fenced(networks: Networks) -> Iterator[Fenced]:
    made = Fenced(networks)
    yield made
    made.close()


# What the uid reaches


@pytest.mark.parametrize("address", ADDRESSES)
def test_tcp_of_the_uid_lands_on_the_gateway_and_of_others_in_the_world(fenced: Fenced, address: str) -> None:
    assert fenced.connect(neighbour(address), PORT, uid=OTHER) == "world"
    assert fenced.connect(address, PORT, uid=fenced.fence.uid) == "gateway"
    assert fenced.networks.witness.packets(address) == []


@pytest.mark.parametrize("port", [22, 443, 65535])
def test_no_port_is_spared(fenced: Fenced, port: int) -> None:
    assert fenced.connect("203.0.113.9", port, uid=fenced.fence.uid) == "gateway"


def test_the_machines_loopback_is_redirected_like_everything_else(fenced: Fenced) -> None:
    assert fenced.connect("127.0.0.1", PORT, uid=OTHER) == "loopback"
    assert fenced.connect("127.0.0.1", PORT, uid=fenced.fence.uid) == "gateway"
    assert fenced.connect("10.9.0.2", PORT, uid=fenced.fence.uid) == "gateway"


@pytest.mark.parametrize("address", [*ADDRESSES, "127.0.0.1", "10.9.0.1", "10.9.0.255"])
def test_datagrams_are_dropped(fenced: Fenced, address: str) -> None:
    if not address.endswith("255"):  # broadcasting needs an option, for everybody
        assert fenced.send(neighbour(address), 4444, uid=OTHER) == "sent"
    assert fenced.send(address, 4444, uid=fenced.fence.uid) == "PermissionError"
    sent = [packet for packet in fenced.networks.witness.packets(address) if b"datagram" in packet]
    assert len(sent) == (address == "10.9.0.1")  # the control's


@pytest.mark.parametrize("address", [*ADDRESSES, "127.0.0.1"])
def test_dns_goes_to_the_resolver(fenced: Fenced, address: str) -> None:
    resolver = fenced.sockets.dns_udp[1 if address.startswith("2001") else 0]
    resolver.settimeout(10)
    assert fenced.send(address, 53, uid=fenced.fence.uid) == "sent"
    assert resolver.recv(100) == b"datagram"
    assert fenced.networks.witness.packets() == []


def test_ping_is_dropped(fenced: Fenced) -> None:
    ping = """
import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP) as s:
    try:
        s.sendto(b"\\x08\\0\\0\\0\\0\\0\\0\\0", (sys.argv[1], 0))
        print("sent", end="")
    except OSError as error:
        print(type(error).__name__, end="")
"""
    fenced.machine.run("sysctl", "-qw", "net.ipv4.ping_group_range=0 2147483647")
    assert fenced.run(ping, "203.0.113.99", uid=OTHER) == "sent"
    wait_until(lambda: len(fenced.networks.witness.packets("203.0.113.99")) == 1, "the ping of someone else")
    assert fenced.run(ping, "203.0.113.9", uid=fenced.fence.uid) == "PermissionError"
    assert fenced.networks.witness.packets("203.0.113.9") == []


def test_nothing_is_reached_before_the_fence_is_opened(networks: Networks) -> None:
    held = networks.machine.make(fence.raise_fence)
    world = Greeter(networks.world, PORT, "world")
    try:
        as_uid = ["setpriv", "--reuid", str(held.uid), "--clear-groups", PYTHON, "-I", "-c", CONNECT]
        networks.witness.packets()
        assert networks.machine.run(*as_uid, "203.0.113.9", str(PORT), "0.5") == "TimeoutError"
        assert networks.witness.packets() == []
    finally:
        world.close()
        held.remove()


# What others reach


def test_nobody_else_gets_at_the_gateways_sockets(fenced: Fenced) -> None:
    """It would be a proxy for every user of the machine. Root is no exception."""
    for uid in (OTHER, 0):
        assert fenced.connect("127.0.0.1", fenced.port, uid=uid, patience_s=0.5) == "TimeoutError"
        assert fenced.connect("::1", fenced.port, uid=uid, patience_s=0.5) == "TimeoutError"
        assert fenced.connect("127.0.0.1", fenced.dns_port, uid=uid, patience_s=0.5) == "TimeoutError"
        assert fenced.send("127.0.0.1", fenced.dns_port, uid=uid) == "PermissionError"
        assert fenced.send("::1", fenced.dns_port, uid=uid) == "PermissionError"


def test_the_uid_itself_gets_at_them_by_redirection_only(fenced: Fenced) -> None:
    assert fenced.connect("127.0.0.1", fenced.port, uid=fenced.fence.uid, patience_s=0.5) == "TimeoutError"


def test_two_fences_stand_side_by_side(fenced: Fenced) -> None:
    other = fenced.machine.make(fence.raise_fence)
    try:
        assert other.uid != fenced.fence.uid
        assert len(fenced.machine.tables()) == 2
        assert fenced.connect("203.0.113.9", PORT, uid=fenced.fence.uid) == "gateway"
        assert fenced.connect("203.0.113.9", PORT, uid=other.uid, patience_s=0.5) == "TimeoutError"
    finally:
        other.remove()
    assert fenced.connect("203.0.113.9", PORT, uid=fenced.fence.uid) == "gateway"


# What else is on the machine


def test_nat_rules_of_the_machine_come_second(fenced: Fenced) -> None:
    """A container engine leads ports of the machine to containers: once that counted, `ct status dnat` was true."""
    rules = """
table ip engine {
  chain output {
    type nat hook output priority -100
    ip daddr 10.9.0.2 tcp dport 9000 dnat to 203.0.113.9:8080
  }
}
"""
    fenced.machine.run("nft", "-f", "-", text=rules)
    assert fenced.connect("10.9.0.2", 9000, uid=OTHER) == "world"
    assert fenced.connect("10.9.0.2", 9000, uid=fenced.fence.uid) == "gateway"
    fenced.machine.run("nft", "delete", "table", "ip", "engine")


def test_a_flush_of_all_rules_leaves_the_fence(fenced: Fenced) -> None:
    if not _knows_owners(fenced):
        pytest.skip("tables have no owners in this kernel (before 5.12)")
    fenced.machine.run("nft", "add", "table", "inet", "bystander")
    fenced.machine.run("nft", "flush", "ruleset")
    assert fenced.machine.tables() == [fenced.fence.name]
    assert fenced.connect("203.0.113.9", PORT, uid=fenced.fence.uid) == "gateway"


def _knows_owners(fenced: Fenced) -> bool:
    return "owner" in fenced.machine.run("nft", "list", "table", "inet", fenced.fence.name)


def test_a_strange_source_address_does_not_make_the_gateways_answers_leave(fenced: Fenced) -> None:
    program = """
import socket, sys
with socket.socket(socket.AF_INET6) as s:
    s.setsockopt(socket.IPPROTO_IPV6, 78, 1)  # IPV6_FREEBIND
    s.bind(("2001:db8:bad::1", 0))
    s.settimeout(1)
    try:
        s.connect(("2001:db8::9", 443))
        print("connected", end="")
    except OSError as error:
        print(type(error).__name__, end="")
"""
    assert fenced.run(program, uid=fenced.fence.uid) == "TimeoutError"
    assert fenced.networks.witness.packets() == []
    # The control: without the rule for it, the answers do leave.
    keep = nftables.leaves_loopback
    chains = fence._chains(fenced.fence.uid, fenced.port, fenced.dns_port, None)
    chains[1].rules[:] = [rule for rule in chains[1].rules if not rule.startswith(keep())]
    fenced.fence._table.replace(chains)
    assert fenced.run(program, uid=fenced.fence.uid) == "TimeoutError"
    wait_until(lambda: fenced.networks.witness.packets("2001:db8:bad::1") != [], "an answer that leaves")


@pytest.mark.parametrize("has_route", [True, False])
def test_the_rules_alone_do_not_hold_what_comes_in(fenced: Fenced, has_route: bool) -> None:
    """Why nothing may listen in this jail, and why there is a route by uid: under pressure the kernel shakes hands
    without the listener's socket, and what was written to a connection goes out when its own socket is closed, and so
    is no one's. A route goes by the uid that made it.
    """
    program = """
import socket
with socket.create_server(("0.0.0.0", 9999), backlog=1) as listener:
    print("up", flush=True)
    for _ in range(3):
        conn, _ = listener.accept()
        conn.sendall(b"out")
        conn.close()
"""

    def connect() -> socket.socket:
        made = socket.socket()
        made.setblocking(False)
        made.connect_ex(("10.9.0.2", 9999))
        return made

    def came(conn: socket.socket) -> bool:
        try:
            return conn.recv(100) == b"out"
        except OSError:
            return False

    fenced.machine.run("sysctl", "-qw", "net.ipv4.tcp_syncookies=1")
    if not has_route:
        fenced.machine.run("ip", "rule", "del", "priority", "1")
        fenced.machine.run("ip", "rule", "del", "priority", "2")
    child = fenced.start(program, uid=fenced.fence.uid)
    assert child.stdout is not None
    assert child.stdout.readline() == "up\n"
    peers = [fenced.networks.world.make(connect) for _ in range(30)]
    try:
        if has_route:
            time.sleep(2)  # without the route it takes a moment
            assert not any(came(peer) for peer in peers)
        else:
            wait_until(lambda: any(came(peer) for peer in peers), "what was written to come out")
    finally:
        child.kill()
        with child:
            pass
        for peer in peers:
            peer.close()


# The uid


def test_uids_are_of_a_range_that_nobody_uses_and_differ_by_process() -> None:
    for pid in (1, 77, 4_194_303):
        found = own_user.uid_candidates(pid)
        assert len(set(found)) == len(found) > 10
        assert all(0x7000_0000 <= uid <= 0x7FFD_FFFF for uid in found)
        assert not set(found) & set(own_user.uid_candidates(pid + 1))


def test_a_uid_in_use_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uid = own_user.uid_candidates(os.getpid())[0]
    assert own_user.is_unused(uid)
    assert not own_user.is_unused(0)
    with subprocess.Popen(["setpriv", "--reuid", str(uid), "--clear-groups", "sleep", "1000"]) as child:
        try:
            wait_until(lambda: os.stat(f"/proc/{child.pid}").st_uid == uid, "the process to change its uid")
            assert not own_user.is_unused(uid)
        finally:
            child.kill()
    assert own_user.is_unused(uid)
    delegated = tmp_path / "subuid"
    delegated.write_text(f"# comment\nsomebody:100000:65536\nbroken\nsomebody:{uid - 10}:65536\n")
    monkeypatch.setattr(own_user, "_DELEGATIONS", (str(delegated),))
    assert not own_user.is_unused(uid)
    assert own_user.is_unused(uid - 11)


# What a crash leaves, and the next start


def test_a_table_of_a_process_that_is_gone_is_removed_at_the_next_start(networks: Networks) -> None:
    dead = networks.machine.make(_crash_with_a_fence)
    mine = networks.machine.make(fence.raise_fence)
    try:
        assert mine.name != dead
        assert networks.machine.tables() == [mine.name]
    finally:
        mine.remove()


def test_what_a_crash_leaves_holds_only_its_own_uid(networks: Networks) -> None:
    networks.machine.make(_crash_with_a_fence)
    world = Greeter(networks.world, PORT, "world")
    try:
        connect = [PYTHON, "-I", "-c", CONNECT, "203.0.113.9", str(PORT), "10"]
        assert networks.machine.run("setpriv", "--reuid", str(OTHER), "--clear-groups", *connect) == "world"
        assert networks.machine.run(*connect) == "world"
    finally:
        world.close()
    networks.machine.make(fence.remove_orphans)
    assert networks.machine.tables() == []


def _crash_with_a_fence() -> str:
    """In a child that ends without taking its fence down. Returns the table's name."""
    program = f"""
import os, sys
sys.path[:0] = {sys.path!r}
from exeat.jail.net.fence import raise_fence
print(raise_fence().name, flush=True)
os._exit(1)
"""
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, timeout=20, check=False)
    assert done.stdout.startswith(fence.PREFIX)
    return done.stdout.strip()


def test_a_process_number_that_has_come_again_keeps_no_table(networks: Networks) -> None:
    pid, namespace = os.getpid(), fence._pid_namespace()
    started = int(fence._started(pid))
    living = f"{fence.PREFIX}1879050000_{pid}_{started}_{namespace}"
    reused = f"{fence.PREFIX}1879050001_{pid}_{started - 1}_{namespace}"
    foreign = f"{fence.PREFIX}1879050002_{pid}_{started - 1}_{namespace + 1}"
    strange = ["exeat_", "exeat_x_1_2_3", "exeatful", "exeat_1_2"]
    for name in (living, reused, foreign, *strange):
        networks.machine.run("nft", "add", "table", "inet", name)
    networks.machine.make(fence.remove_orphans)
    assert sorted(networks.machine.tables()) == sorted([living, foreign, *strange])


def test_removal_of_what_is_gone_is_no_error(networks: Networks) -> None:
    networks.machine.make(lambda: nftables.remove("never_there"))
    assert networks.machine.tables() == []


# Examination


def _ways(networks: Networks) -> list[str]:
    shown = (("rule",), ("-6", "rule"), ("route", "show", "table", "all"), ("-6", "route", "show", "table", "all"))
    found = [networks.machine.run("ip", *each) for each in shown]
    # The kernel adds link-local addresses in its own time, once it knows that no one else has them.
    return ["\n".join(line for line in each.splitlines() if "fe80:" not in line) for each in found]


def test_an_examination_leaves_nothing_behind(networks: Networks) -> None:
    before = _ways(networks)
    found = networks.machine.run(sys.executable, "-c", EXAMINE).split("\n")
    assert found[0] == "True"
    assert "uid of its own" in found[1]
    assert networks.machine.tables() == []
    assert _ways(networks) == before


def test_an_examination_takes_nothing_away_from_a_jail(fenced: Fenced) -> None:
    before = _ways(fenced.networks)
    assert f"uidrange {own_user.FIRST_UID}-{own_user.LAST_UID} prohibit" in before[0]
    fenced.machine.run(sys.executable, "-c", EXAMINE)
    assert _ways(fenced.networks) == before


def test_somebody_without_rights_is_told_what_is_missing() -> None:
    program = [*as_user(NOBODY), sys.executable, "-c", EXAMINE]
    done = subprocess.run(program, capture_output=True, text=True, timeout=20, check=False)
    assert done.stdout.split("\n") == ["False", "the nft jail needs root: this is uid 65534", "sudo exeat run ...", ""]


def test_root_without_the_right_to_set_rules_is_told_what_is_missing(networks: Networks) -> None:
    drop = ["setpriv", "--bounding-set", "-net_admin", "--inh-caps", "-net_admin"]
    done = networks.machine.run(*drop, sys.executable, "-c", EXAMINE)
    assert done.startswith("False\nthe nft jail may not set packet rules here")
    assert "CAP_NET_ADMIN" in done


EXAMINE = f"""
import sys
sys.path[:0] = {sys.path!r}
from exeat.jail.select import examine
found = examine("nft")
print(found.ok, found.why, found.fix, sep="\\n")
"""


def test_the_seatbelt_jail_is_not_to_be_had_here() -> None:
    found = examine("seatbelt")
    assert (found.ok, found.why) == (False, f"the seatbelt jail needs macOS: this is {sys.platform}")


def test_no_unused_uid_is_an_error(monkeypatch: pytest.MonkeyPatch, networks: Networks) -> None:
    monkeypatch.setattr(fence, "is_unused", lambda uid: False)
    with pytest.raises(JailError, match="no unused uid"):
        networks.machine.make(fence.raise_fence)
    assert networks.machine.tables() == []


def test_ports_that_are_taken_are_passed_over(networks: Networks, monkeypatch: pytest.MonkeyPatch) -> None:
    real = open_sockets
    asked: list[int] = []

    def stubborn(families: list[socket.AddressFamily], tcp_port: int, dns_port: int) -> object:
        asked.append(tcp_port)
        if len(asked) < 3:
            raise OSError(98, "taken")
        return real(families, tcp_port, dns_port)

    monkeypatch.setattr(fence, "open_sockets", stubborn)
    held = networks.machine.make(fence.raise_fence)
    networks.machine.make(lambda: fence.open_fenced_sockets(held)).close()
    held.remove()
    assert len(asked) == 3
