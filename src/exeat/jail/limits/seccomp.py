"""The system call filter of the command: refuses calls that could bypass the network namespace or reach the caller.

It refuses a short list and allows the rest, so that programs work. It never stands alone: files, processes and packets
are kept apart by namespaces, and what needs a capability is left to the kernel, since the command has none. ptrace and
process_vm_* stay, so that debuggers work in the jail.
"""

from __future__ import annotations

import ctypes
import errno
import struct

from exeat.errors import ExeatError
from exeat.jail import libc
from exeat.jail.limits.bpf import Program

KILL_PROCESS = 0x80000000
ALLOW = 0x7FFF0000
_ERRNO = 0x00050000
TELL = 0x7FC00000  # SECCOMP_RET_USER_NOTIF: the holder of the listener answers
_SECCOMP_MODE_FILTER = 2
_SECCOMP_SET_MODE_FILTER = 1
_SECCOMP_FILTER_FLAG_NEW_LISTENER = 1 << 3

# AUDIT_ARCH_*. The numbers below mean other calls on another architecture (i386 on x86_64, arm on aarch64).
_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT = 0x40000000

_CALLS = {
    "ioctl": (16, 29), "socket": (41, 198), "bind": (49, 200), "listen": (50, 201), "socketpair": (53, 199),
    "setsockopt": (54, 208), "clone": (56, 220), "setpriority": (141, 140), "add_key": (248, 217),
    "setgroups": (116, 159), "request_key": (249, 218), "keyctl": (250, 219), "ioprio_set": (251, 30),
    "unshare": (272, 97),
    "perf_event_open": (298, 241), "setns": (308, 268), "seccomp": (317, 277), "bpf": (321, 280),
    "userfaultfd": (323, 282), "io_uring_setup": (425, 425), "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427), "clone3": (435, 435),
}  # fmt: skip
NUMBERS = {machine: {name: numbers[at] for name, numbers in _CALLS.items()} for at, machine in enumerate(_ARCH)}

# Refused whatever the arguments, with the answer programs know from a kernel without it (ENOSYS) or a strict one.
_REFUSED = {
    # Makes and connects sockets without a system call that this filter could see.
    "io_uring_setup": errno.ENOSYS,
    "io_uring_enter": errno.ENOSYS,
    "io_uring_register": errno.ENOSYS,
    # Its flags are in memory, where a filter cannot look. C libraries fall back to clone on ENOSYS, and only on that.
    "clone3": errno.ENOSYS,
    "setns": errno.EPERM,
    # Keyrings do not belong to a namespace that we make: these would be the caller's.
    "add_key": errno.ENOSYS,
    "request_key": errno.ENOSYS,
    "keyctl": errno.ENOSYS,
    # With a low kernel.perf_event_paranoid it samples every process of the machine, the gateway included.
    "perf_event_open": errno.EACCES,
    # Open to everybody on some machines. Much kernel behind them, almost no program in need of them.
    "bpf": errno.EPERM,
    "userfaultfd": errno.EPERM,
}

_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
_SOCK_STREAM, _SOCK_DGRAM, _SOCK_RAW = 1, 2, 3
_SOCK_FLAGS = 0x80000 | 0x800  # CLOEXEC and NONBLOCK travel in the type
_NETLINK_ROUTE = 0
_PROTOCOLS = (0, 6, 17)  # the default, TCP, UDP
_MPTCP = 262  # the kernel may open further flows of its own for it

_LEVEL_IP, _LEVEL_SOCKET, _LEVEL_TCP, _LEVEL_IPV6 = 0, 1, 6, 41
# FREEBIND, MINTTL; ADD_MEMBERSHIP, ADD_SOURCE_MEMBERSHIP, MSFILTER, MCAST_JOIN_GROUP, MCAST_JOIN_SOURCE_GROUP,
# MCAST_MSFILTER; OPTIONS, MULTICAST_IF, UNICAST_IF.
_IP_OPTIONS = (15, 21, 35, 39, 41, 42, 46, 48, 4, 32, 50)
# FREEBIND, MINHOPCOUNT; ADD_MEMBERSHIP, JOIN_ANYCAST, MCAST_JOIN_GROUP, MCAST_JOIN_SOURCE_GROUP, MCAST_MSFILTER;
# 2292PKTOPTIONS, NEXTHOP, MULTICAST_IF, PKTINFO, HOPOPTS, RTHDRDSTOPTS, RTHDR, DSTOPTS, UNICAST_IF.
_IPV6_OPTIONS = (78, 73, 20, 27, 42, 46, 48, 6, 9, 17, 50, 54, 55, 57, 59, 76)
_TCP_OPTIONS = (14, 31, 32, 38)  # MD5SIG, ULP (which may move a connection to another network), MD5SIG_EXT, AO_ADD_KEY
# BINDTODEVICE, BINDTOIFINDEX; ATTACH_FILTER, ATTACH_BPF, ATTACH_REUSEPORT_CBPF, ATTACH_REUSEPORT_EBPF.
_SOCKET_OPTIONS = (25, 62, 26, 50, 51, 52)
# Lengths of addresses: of netlink sockets, which is shorter than any of the Internet; of IPv4 and IPv6.
_LONGEST_NETLINK = 12
_INTERNET = (16, 28)

# libc.CLONE_NEWTIME is missing: clone takes that bit for part of the signal number.
_CLONE_NAMESPACES = libc.CLONE_NEWNS | libc.CLONE_NEWCGROUP | libc.CLONE_NEWUTS | libc.CLONE_NEWIPC
_CLONE_NAMESPACES |= libc.CLONE_NEWUSER | libc.CLONE_NEWPID | libc.CLONE_NEWNET
# unshare gets new flags for new namespaces, so it is read the other way round: VM, FS, FILES, SIGHAND, THREAD, SYSVSEM.
_UNSHARE_HARMLESS = 0x100 | 0x200 | 0x400 | 0x800 | 0x10000 | 0x40000
# What sandboxes inside may make. A program that owns a namespace has rights over that namespace only.
_NESTED = _CLONE_NAMESPACES | libc.CLONE_NEWTIME

_PRIO_PROCESS, _IOPRIO_WHO_PROCESS = 0, 1

_TIOCSTI = 0x5412  # types into a terminal
_TIOCLINUX = 0x541C  # pastes into a console
# Btrfs copies the whole subvolume that a file is in, with all that is hidden of it, to wherever its owner says. Since
# Linux 6.8 it wants more than any file for that. In both forms (BTRFS_IOC_SNAP_CREATE).
_SNAPSHOTS = (0x50009401, 0x50009417)

_NR, _ARCHITECTURE = 0, 4


def _argument(index: int) -> int:
    """Where the low half of an argument is.

    The kernel takes these arguments as ints and drops the upper half, and so must we: a filter that compares 64 bits
    is passed with a high bit set (CVE-2019-10063).
    """
    return 16 + 8 * index


def _refuse(number: int) -> int:
    return _ERRNO | number


class Nesting:
    """May the command make user namespaces of its own, for a sandbox inside? Not by default."""

    __slots__ = ("allowed", "control_groups", "programs", "tell")

    def __init__(
        self, *, allowed: bool = False, control_groups: bool = False, tell: bool = False, programs: int = 0
    ) -> None:
        self.allowed = allowed
        self.programs = programs  # of ours, which get one before the filter is there
        self.control_groups = control_groups  # and namespaces of control groups, which make these mountable
        self.tell = tell  # a try that is refused goes to the listener, which has to answer


NO_NESTING = Nesting()


def build_filter(
    machine: str, *, unix_sockets: bool = True, shared_network: bool = False, nesting: Nesting = NO_NESTING
) -> bytes:
    """The filter for a machine as `os.uname().machine` names it. A machine it does not know is an error, never a pass.

    Without `unix_sockets`, socket() makes no Unix sockets; socketpair() still does, as its ends are connected already.
    With `shared_network`, packets are told apart by the uid of their socket, and what makes packets without one is
    refused.
    """
    if nesting.allowed and shared_network:
        raise ExeatError("no namespaces inside a jail that shares the host's network")
    numbers = NUMBERS.get(machine)
    if numbers is None:
        raise ExeatError(f"no system call filter for {machine}: exeat's jail runs on x86_64 and aarch64")
    program = Program()
    program.load(_ARCHITECTURE)
    program.jump_equal(_ARCH[machine], KILL_PROCESS, unless=True)
    program.load(_NR)
    if machine == "x86_64":
        program.jump_at_least(_X32_BIT, _refuse(errno.EPERM))
    # One comparison after the other. Since 5.11 the kernel tries every number at installation, and does not run the
    # filter for those it always allows, so depth costs them nothing. Measured on 6.18: any filter at all adds 10 ns to
    # a call of 85 ns; running this one to its end adds another 17, for ioctl, socket and the like. Older kernels pay
    # those 17 each time.
    for name, number in _REFUSED.items():
        # Nested programs join their own namespaces. Others' take a capability over these, which they do not have.
        if not (nesting.allowed and name == "setns"):
            program.jump_equal(numbers[name], _refuse(number))
    if shared_network:
        # A connection that came in goes on after its socket was closed, and its packets are no one's then. Of an
        # address family the filter sees nothing here, so Unix sockets cannot listen either.
        program.jump_equal(numbers["listen"], _refuse(errno.EACCES))
        program.jump_equal(numbers["setsockopt"], "setsockopt")
        program.jump_equal(numbers["bind"], "bind")
    for name in ("ioctl", "setpriority", "ioprio_set", "socket", "socketpair", "clone", "unshare"):
        program.jump_equal(numbers[name], name)
    program.end(ALLOW)
    _judge_ioctl(program)
    _judge_priorities(program)
    _judge_namespaces(program, nesting)
    if shared_network:
        _judge_bind(program)
        _judge_setsockopt(program)
    _judge_socket(program, unix_sockets=unix_sockets, mptcp=not shared_network)
    return program.assemble()


def build_groups_kept(machine: str) -> bytes:
    """A filter under which setgroups() does nothing and says that it has. For a server that gives its groups away, and
    ends if it may not: in a user namespace of ordinary users no one may."""
    program = Program()
    program.load(_ARCHITECTURE)
    program.jump_equal(_ARCH[machine], KILL_PROCESS, unless=True)
    program.load(_NR)
    program.jump_equal(NUMBERS[machine]["setgroups"], _refuse(0))
    program.end(ALLOW)
    return program.assemble()


def _judge_ioctl(program: Program) -> None:
    program.place("ioctl")
    program.load(_argument(1))
    program.jump_equal(_TIOCSTI, _refuse(errno.EPERM))
    program.jump_equal(_TIOCLINUX, _refuse(errno.EPERM))
    for request in _SNAPSHOTS:
        program.jump_equal(request, _refuse(errno.EPERM))
    program.end(ALLOW)


def _judge_priorities(program: Program) -> None:
    """Of processes by number, which is one of the jail's. The caller's process group is the command's as well."""
    for place, process in (("setpriority", _PRIO_PROCESS), ("ioprio_set", _IOPRIO_WHO_PROCESS)):
        program.place(place)
        program.load(_argument(0))
        program.jump_equal(process, _refuse(errno.EPERM), unless=True)
        program.end(ALLOW)


def _judge_namespaces(program: Program, nesting: Nesting) -> None:
    """A new user namespace would give back every capability in it, and with them the kernel's larger surface."""
    nested = _NESTED if nesting.allowed else 0
    if not nesting.control_groups:
        nested &= ~libc.CLONE_NEWCGROUP
    refused_by_clone = _CLONE_NAMESPACES & ~nested
    refused_by_unshare = 0xFFFFFFFF ^ (_UNSHARE_HARMLESS | nested)
    for name, refused in (("clone", refused_by_clone), ("unshare", refused_by_unshare)):
        program.place(name)
        program.load(_argument(0))  # the flags, on both machines; others have the stack first
        if nesting.tell and not nesting.allowed:
            program.jump_any_bit(libc.CLONE_NEWUSER, TELL)
        program.jump_any_bit(refused, _refuse(errno.EPERM))
        program.end(ALLOW)


def _judge_bind(program: Program) -> None:
    """A socket with an address of the machine's is a signal to the outside: a stray segment is answered otherwise.

    A filter does not see the address, nor which kind of socket it is for; the length tells enough. For Internet sockets
    nothing is done and success is told: the kernel then chooses, as for most it would have. musl's resolver binds.
    """
    program.place("bind")
    program.load(_argument(2))
    for length in _INTERNET:
        program.jump_equal(length, _refuse(0))
    program.jump_at_least(_LONGEST_NETLINK + 1, _refuse(errno.EACCES))
    program.end(ALLOW)


def _judge_setsockopt(program: Program) -> None:
    """Joining a multicast group makes the kernel send reports, and a strange source address makes the gateway's
    answers leave: both would carry bits of the command's choice past the packet rules. And a socket that is made deaf
    to its peer goes on sending after it was closed, when it belongs to no one. Which interface and which way packets
    take is not the command's to say: the packet rules hold that as well.
    """
    program.place("setsockopt")
    program.load(_argument(1))
    program.jump_equal(_LEVEL_IP, "ip option")
    program.jump_equal(_LEVEL_IPV6, "ipv6 option")
    program.jump_equal(_LEVEL_TCP, "tcp option")
    program.jump_equal(_LEVEL_SOCKET, "socket option")
    program.end(ALLOW)
    for place, options in (
        ("ip option", _IP_OPTIONS),
        ("ipv6 option", _IPV6_OPTIONS),
        ("tcp option", _TCP_OPTIONS),
        ("socket option", _SOCKET_OPTIONS),
    ):
        program.place(place)
        program.load(_argument(2))
        for option in options:
            program.jump_equal(option, _refuse(errno.EPERM))
        program.end(ALLOW)


def _judge_socket(program: Program, *, unix_sockets: bool, mptcp: bool) -> None:
    """Only what the jail's packet rules can see, Unix sockets, and questions about interfaces and routes."""
    program.place("socketpair")
    # The kernel makes both sockets, of any family, before it asks whether they can be a pair.
    program.load(_argument(0))
    program.jump_equal(_AF_UNIX, _refuse(errno.EAFNOSUPPORT), unless=True)
    program.end(ALLOW)

    program.place("socket")
    program.load(_argument(0))
    program.jump_equal(_AF_INET, "inet")
    program.jump_equal(_AF_INET6, "inet")
    program.jump_equal(_AF_UNIX, ALLOW if unix_sockets else _refuse(errno.EAFNOSUPPORT))
    program.jump_equal(_AF_NETLINK, _refuse(errno.EAFNOSUPPORT), unless=True)
    program.load(_argument(2))
    program.jump_equal(_NETLINK_ROUTE, _refuse(errno.EPROTONOSUPPORT), unless=True)
    program.end(ALLOW)

    program.place("inet")
    program.load(_argument(1))
    program.keep_bits(0xFFFFFFFF ^ _SOCK_FLAGS)
    program.jump_equal(_SOCK_STREAM, "protocol")
    program.jump_equal(_SOCK_DGRAM, "protocol")
    program.jump_equal(_SOCK_RAW, _refuse(errno.EPERM))
    program.end(_refuse(errno.ESOCKTNOSUPPORT))  # SEQPACKET, DCCP, and PACKET, which would become an AF_PACKET socket
    program.place("protocol")
    program.load(_argument(2))
    for protocol in (*_PROTOCOLS, _MPTCP) if mptcp else _PROTOCOLS:
        program.jump_equal(protocol, ALLOW)
    program.end(_refuse(errno.EPROTONOSUPPORT))  # SCTP, UDP-Lite, DCCP, SMC, and ICMP's ping sockets


def install(program: bytes) -> None:
    """Put this thread, and all it starts, under a filter for good. `no_new_privs` must be set, even for root.

    Other threads of the process stay outside: call it while there is one.
    """
    _need_no_new_privs()
    code, header = _as_structure(program)
    # This is seccomp(2) without flags, by a name that needs no number per machine.
    libc.prctl(libc.PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(header))
    del code


def install_with_listener(program: bytes, machine: str) -> int:
    """As `install`, for a filter that tells. Returns the listener: without someone who reads it, such calls wait.

    OSError, and nothing installed, where the kernel has none (before 5.0) or this process has one already.
    """
    _need_no_new_privs()
    code, header = _as_structure(program)
    number = NUMBERS[machine]["seccomp"]
    listener = libc.syscall(
        number, _SECCOMP_SET_MODE_FILTER, _SECCOMP_FILTER_FLAG_NEW_LISTENER, ctypes.addressof(header)
    )
    del code
    return listener


def _need_no_new_privs() -> None:
    if not libc.prctl(libc.PR_GET_NO_NEW_PRIVS):
        raise ExeatError("a system call filter needs no_new_privs first")


def _as_structure(program: bytes) -> tuple[ctypes.Array[ctypes.c_char], ctypes.Array[ctypes.c_char]]:
    """A struct sock_fprog, and the code that it points to, which must live as long."""
    code = ctypes.create_string_buffer(program, len(program))
    return code, ctypes.create_string_buffer(struct.pack("@HP", len(program) // 8, ctypes.addressof(code)))
