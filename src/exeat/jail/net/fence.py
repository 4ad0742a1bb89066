"""Packet rules around one uid, for a jail that shares the host's network: root only.

Everything that the uid sends is redirected to the gateway's sockets on loopback, or dropped. The uid is of this run
only, so what a crash leaves behind restricts nobody; the next start takes it away. The rules never touch what other
users send, except that nobody but this uid gets at the gateway's sockets, and that the machine does not tell the world
which of its UDP ports are closed: the command could open and close one as a signal. One thing stays for good: routing
rules that keep all uids that such jails can have on loopback, for connections that go on after their socket was closed.
"""

from __future__ import annotations

import errno
import os
import socket
from contextlib import suppress

from exeat.errors import JailError
from exeat.jail.jail import Sockets
from exeat.jail.limits.own_user import FIRST_UID, LAST_UID, is_unused, uid_candidates
from exeat.jail.net import nftables as nft
from exeat.jail.net.netlink import keep_users_here, let_users_go, open_packet_log
from exeat.jail.net.network import LOGGED_BYTES, LOGGED_PER_SECOND, open_sockets

PREFIX = "exeat_"
_TCP, _UDP = socket.IPPROTO_TCP, socket.IPPROTO_UDP
_LOOPBACK = (b"\x7f\0\0\1", b"\0" * 15 + b"\1")
_PORT_ATTEMPTS = 20
_ROUTES = 0x6578_6561  # a routing table that nobody else has
_TRIAL = (LAST_UID + 1, LAST_UID + 1, _ROUTES + 1)  # uids that no jail has, and another table
_ICMP, _ICMPV6 = socket.IPPROTO_ICMP, socket.IPPROTO_ICMPV6
_FIRST_LOG_GROUP, _LOG_GROUPS = 1_024, 60_000  # the low ones are those that administrators use


class Fence:
    """The rules that hold one uid. Shut when made: nothing of that uid gets anywhere before `open_to`."""

    __slots__ = ("_table", "uid")

    def __init__(self, uid: int) -> None:
        self.uid = uid
        self._table = nft.OwnTable(_table_name(uid), [_filter([nft.rule(nft.meta_skuid(uid), nft.verdict(nft.DROP))])])

    @property
    def name(self) -> str:
        return self._table.name

    def open_to(self, tcp_port: int, dns_port: int, log_group: int | None = None) -> None:
        """Lead the uid's TCP and DNS to these ports of loopback."""
        self._table.replace(_chains(self.uid, tcp_port, dns_port, log_group))

    def remove(self) -> None:
        """To be called once, when no process of the uid and no gateway is left.

        In that order: a closed socket that still has something to send is nobody's, and ends only with its peer.
        """
        self._table.remove()


def raise_fence(*, is_trial: bool = False) -> Fence:
    """Take an unused uid and put rules around it. Removes what earlier runs left behind. Raises JailError.

    For a trial, in which no process will have the uid, there are routes that can be taken away again.
    """
    if os.geteuid() != 0:
        raise JailError("the nft jail needs root", detail=f"this is uid {os.geteuid()}", fix="sudo exeat run ...")
    try:
        keep_users_here(*(_TRIAL if is_trial else (FIRST_UID, LAST_UID, _ROUTES)))
        remove_orphans()
        for uid in uid_candidates(os.getpid()):
            if not is_unused(uid):
                continue
            try:
                fence = Fence(uid)
            except FileExistsError:
                continue  # this process has it already
            # Another PID namespace on the same network may have the same process number. Both see it, and go on.
            if not any(name != fence.name and _uid_of(name) == uid for name in nft.list_tables()):
                return fence
            fence.remove()
    except OSError as error:
        raise _explain(error) from None
    raise JailError("the nft jail found no unused uid")


def _explain(error: OSError) -> JailError:
    reason = error.strerror or str(error)
    if error.errno in (errno.EPERM, errno.EACCES):
        return JailError(
            "the nft jail may not set packet rules here",
            detail=f"{reason}; it needs CAP_NET_ADMIN",
            fix="in a container: docker run --cap-add NET_ADMIN ...",
        )
    return JailError(
        "the nft jail needs nf_tables, which this kernel does not offer",
        detail=reason,
        fix="sudo modprobe -a nf_tables nft_chain_nat nft_redir nft_ct",
    )


def open_fenced_sockets(fence: Fence) -> Sockets:
    """The gateway's sockets on the host's loopback, and the rules that lead to them. Raises JailError."""
    try:
        sockets = _open_on_free_ports()
        try:
            log_group = _open_log(fence, sockets)
            ports = sockets.tcp[0].getsockname()[1], sockets.dns_udp[0].getsockname()[1]
            try:
                fence.open_to(*ports, log_group)
            except OSError:
                if log_group is None:
                    raise
                fence.open_to(*ports)  # no logging in this kernel: what is dropped is only not told
        except BaseException:
            sockets.close()
            raise
    except OSError as error:
        raise _explain(error) from None
    return sockets


def _open_on_free_ports() -> Sockets:
    """Ports are chosen for IPv4 and may be taken for IPv6 or UDP: then others are."""
    families = [socket.AF_INET, socket.AF_INET6][: 2 if _has_ipv6_loopback() else 1]
    for _ in range(_PORT_ATTEMPTS):
        try:
            return open_sockets(families, 0, 0)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    return open_sockets(families, 0, 0)


def _has_ipv6_loopback() -> bool:
    """Where it is switched off, IPv6 of the uid is led to nobody."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def _open_log(fence: Fence, sockets: Sockets) -> int | None:
    group = _FIRST_LOG_GROUP + fence.uid % _LOG_GROUPS
    try:
        sockets.dropped.append(open_packet_log(group, LOGGED_BYTES))
    except OSError:
        return None  # not in this kernel, or somebody listens there already
    return group


def _filter(rules: list[nft.Rule]) -> nft.Chain:
    return nft.Chain("filter", "filter", nft.PRIORITY_FILTER, nft.ACCEPT, rules)


def _chains(uid: int, tcp_port: int, dns_port: int, log_group: int | None) -> list[nft.Chain]:
    ours = nft.meta_skuid(uid)
    nat = [
        nft.rule(ours, nft.l4proto(_UDP), nft.dport(53), nft.redirect(dns_port)),
        nft.rule(ours, nft.l4proto(_TCP), nft.dport(53), nft.redirect(dns_port)),
        # Loopback is the host's here, and is redirected like everything else.
        nft.rule(ours, nft.l4proto(_TCP), nft.redirect(tcp_port)),
    ]
    rules: list[nft.Rule] = []
    for protocol, port in ((_TCP, tcp_port), (_TCP, dns_port), (_UDP, dns_port)):
        for address in _LOOPBACK:
            to_gateway = nft.daddr(address) + nft.l4proto(protocol) + nft.dport(port)
            # By redirection only, which is this uid's alone: others would use the gateway as a proxy. Not by uid,
            # since the last packets of a closed socket have none.
            rules.append(nft.rule(to_gateway, nft.ct_status_dnat(), nft.verdict(nft.ACCEPT)))
            rules.append(nft.rule(to_gateway, nft.verdict(nft.DROP)))
            # A strange source address would have the gateway's answers leave the machine.
            from_gateway = nft.saddr(address) + nft.l4proto(protocol) + nft.sport(port)
            rules.append(nft.rule(nft.leaves_loopback(), from_gateway, nft.verdict(nft.DROP)))
    for address, icmp in zip(_LOOPBACK, (_ICMP, _ICMPV6), strict=True):
        rules.append(nft.rule(nft.leaves_loopback(), nft.saddr(address), nft.l4proto(icmp), nft.verdict(nft.DROP)))
    for icmp, kind, code in ((_ICMP, 3, 3), (_ICMPV6, 1, 4)):  # "port unreachable"
        closed = nft.l4proto(icmp) + nft.icmp_kind(kind, code)
        rules.append(nft.rule(nft.leaves_loopback(), closed, nft.verdict(nft.DROP)))
    if log_group is not None:
        rules.append(nft.rule(ours, nft.limit(LOGGED_PER_SECOND), nft.log(log_group, LOGGED_BYTES)))
    rules.append(nft.rule(ours, nft.verdict(nft.DROP)))
    return [nft.Chain("nat", "nat", nft.PRIORITY_BEFORE_DSTNAT, nft.ACCEPT, nat), _filter(rules), *_last_walls(uid)]


def _last_walls(uid: int) -> list[nft.Chain]:
    """Where it is settled by which interface a packet leaves: nothing of the uid's by a real one."""
    leaves = nft.leaves_loopback()
    rules = [
        nft.rule(leaves, nft.meta_skuid(uid), nft.verdict(nft.DROP)),
        # Its sockets have loopback addresses, also those that are closed and have no owner.
        nft.rule(leaves, nft.saddr(b"\x7f"), nft.verdict(nft.DROP)),
        nft.rule(leaves, nft.saddr(_LOOPBACK[1]), nft.verdict(nft.DROP)),
    ]
    # Where source routing is on, a packet could be told to leave again after it has come in by loopback.
    turned = [nft.rule(nft.comes_from_loopback(), leaves, nft.verdict(nft.DROP))]
    return [
        nft.Chain("leaving", "filter", nft.PRIORITY_LAST, nft.ACCEPT, rules, hook=nft.POSTROUTING),
        nft.Chain("turned", "filter", nft.PRIORITY_FILTER, nft.ACCEPT, turned, hook=nft.FORWARD),
    ]


# Names of tables say whose they are: uid, process number, its start, the PID namespace in which it has that number.


def _table_name(uid: int) -> str:
    pid = os.getpid()
    return f"{PREFIX}{uid}_{pid}_{_started(pid)}_{_pid_namespace()}"


def _uid_of(name: str) -> int | None:
    first = name.removeprefix(PREFIX).split("_")[0]
    return int(first) if name.startswith(PREFIX) and first.isdecimal() else None


def _started(pid: int) -> str:
    """When the process was started, in clock ticks since boot; "" if it is not there."""
    try:
        with open(f"/proc/{pid}/stat", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def _pid_namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


def remove_orphans() -> None:
    """Take away tables of runs that are over. One of another PID namespace is left: nobody here can know. OSError."""
    namespace = str(_pid_namespace())
    for name in nft.list_tables():
        if _uid_of(name) is None:
            continue
        _, *owner = name.removeprefix(PREFIX).split("_")
        if len(owner) != 3 or owner[2] != namespace or not owner[0].isdecimal():
            continue
        if _started(int(owner[0])) != owner[1]:
            try:
                nft.remove(name)
            except PermissionError:
                pass  # a process that its owner started still holds it


def end_trial() -> None:
    """Take away the routes of a trial."""
    with suppress(OSError):  # without the right to it nothing was done either
        let_users_go(*_TRIAL)
