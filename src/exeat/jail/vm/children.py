"""QEMU and virtiofsd, each in its own user namespace, with a minimal root.

The supervisor forks them before it has the system call filter; they get it themselves, last of all.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NoReturn

from exeat.jail import libc
from exeat.jail.limits import privileges, seccomp
from exeat.jail.process.descriptors import close_all_but
from exeat.jail.vm.files.disk import BASE, GuestDisk
from exeat.jail.vm.machine import Machine, NineP, command_line, descriptors, shares_memory
from exeat.jail.vm.shares import Served
from exeat.jail.vm.tree import BOOT, MACHINE, SERVER, MachineTree

QEMU: Final = "QEMU"
_FILES: Final = "what serves its files"
_PORTS: Final = ("control", "in", "out", "err", "qmp", "console")
_ENVIRON: Final = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "HOME": "/"}
_NOT_STARTED: Final = 127
_HUNG_UP_S: Final = 1.0  # from a last word to the end: a few milliseconds
_LOOK_S: Final = 0.005
# Each connection of the guest takes a descriptor and a quarter of a megabyte in QEMU, whatever memory the guest has.
_MOST_OPEN: Final = 1024
# What is QEMU's or virtiofsd's own, apart from the guest's memory. A quarter of it is for code that QEMU translates,
# and nearly as much for connections. Without a limit a guest could use up the machine's memory: by first parts of
# packets whose rest never comes, or by open folders.
_OWN_MEMORY: Final = 1 << 30
_OF_WORKERS: Final = 640 << 20  # up to 64 threads, for a disk and for 9p, with what they work on
_OF_CPU: Final = 16 << 20  # a thread, and what it allocates
_STACK: Final = 8 << 20  # of a thread: it counts as a whole


class Children:
    """Those that run. Whatever happens while they are started, `end` ends all that were."""

    def __init__(self) -> None:
        self._running: dict[int, str] = {}
        self.qemu = 0

    def start(
        self, machine: Machine, tree: MachineTree, served: Served, disk: GuestDisk | None, *, errors: int
    ) -> tuple[Machine, dict[str, socket.socket]]:
        """The machine as it was started, and our ends of its ports, by name. What they say goes to `errors`."""
        ours: dict[str, socket.socket] = {}
        theirs: dict[str, socket.socket] = {}
        for name in _PORTS:
            ours[name], theirs[name] = socket.socketpair()
            ours[name].setblocking(False)
        for_qemu, for_files = tree.namespaces
        shares, servers = served.open()
        for server in servers:
            pid = start(
                server.arguments, root=SERVER, namespace=for_files, kept=server.kept, errors=errors, keeps_rights=True
            )
            self._running[pid] = _FILES
        own = reserve_numbers(tree.boot_names)
        machine = machine.replace(
            **{f"{name}_fd": theirs[name].fileno() for name in _PORTS},
            shares=shares,
            disk=disk.as_qemu_has_it(own[BASE]) if disk is not None else None,
        )
        self.qemu = start(
            partial(qemu_arguments, machine, own, disk),
            root=MACHINE if served.virtiofsd else SERVER,  # if no one else serves files, it does
            kept=[*descriptors(machine), *own.values()],
            namespace=for_qemu,
            errors=errors,
            keeps_rights=False,
        )
        self._running[self.qemu] = QEMU
        for each in theirs.values():
            each.close()
        to_close = (*served.to_close(shares, servers), *own.values())
        for fd in (*to_close, *((disk.overlay,) if disk else ())):
            os.close(fd)
        return machine, ours

    def buried(self) -> Iterator[tuple[str, int]]:
        """Which of them have ended, and how. It is "" for one that none of them is."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            yield self._running.pop(pid, ""), status

    def await_qemu(self) -> int | None:
        """How it ended, when it has hung up: killed, or as a guest that powers off. None: it goes on, or was buried."""
        ends = time.monotonic() + _HUNG_UP_S
        while self.qemu in self._running:
            pid, status = os.waitpid(self.qemu, os.WNOHANG)
            if pid:
                del self._running[pid]
                return status
            if time.monotonic() >= ends:
                break
            time.sleep(_LOOK_S)
        return None

    def end(self) -> None:
        for pid in self._running:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in self._running:
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)  # the jail ends no sooner, and its caller is told what CPU time they took
        self._running = {}


def start(
    arguments: Callable[[], Sequence[str]],
    *,
    root: str,
    namespace: int,
    kept: Sequence[int],
    errors: int,
    keeps_rights: bool,
) -> int:
    """Fork, and become the program that `arguments` names, in that root and that namespace of users.

    `arguments` is called in the new root, and may open files there. `kept` descriptors are inherited, `errors` becomes
    its standard error. With `keeps_rights` it keeps all capabilities, which are worth nothing outside of its namespace.
    """
    pid = os.fork()
    if pid:
        return pid
    try:
        _enter(root, namespace, errors)
        _become(arguments, kept, errors, keeps_rights=keeps_rights)
    except BaseException as error:
        with suppress(OSError):
            os.write(errors, f"it could not be started: {error}\n".encode(errors="replace"))
    finally:
        os._exit(_NOT_STARTED)


def _enter(root: str, namespace: int, errors: int) -> None:
    os.setsid()  # Ctrl-C is for the guest's command, and gets there by the supervisor
    libc.call("setns", namespace, libc.CLONE_NEWUSER)
    os.chroot(root)
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    for number, source in ((0, null), (1, null), (2, errors)):
        os.dup2(source, number)


def _become(
    arguments: Callable[[], Sequence[str]], kept: Sequence[int], errors: int, *, keeps_rights: bool
) -> NoReturn:
    _lower(resource.RLIMIT_STACK, _STACK)
    argv = list(arguments())
    close_all_but([*kept, errors], inherited_too=True)  # what the caller left open was for the command
    for number in kept:
        os.set_inheritable(number, True)
    if keeps_rights:
        privileges.keep_over_exec()
        if os.getgroups():
            # virtiofsd. It keeps the groups of its caller, as a command in a jail without a guest does.
            seccomp.install(seccomp.build_groups_kept(os.uname().machine))
        _lower(resource.RLIMIT_DATA, _OWN_MEMORY)
    else:
        privileges.drop_all()
    # Their sockets come from us. By one of their own they could reach programs that listen in /usr, /opt or /nix.
    seccomp.install(seccomp.build_filter(os.uname().machine, unix_sockets=False))
    os.execve(argv[0], argv, _ENVIRON)  # noqa: S606


def reserve_numbers(names: Sequence[str]) -> dict[str, int]:
    """Of descriptors that QEMU opens itself: the lowest that are free, since a user may be allowed few."""
    return {name: os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) for name in names}


def most_memory(machine: Machine) -> int:
    """That QEMU may have for itself. Its guest's counts where no one else has it as well."""
    of_guest = 0 if shares_memory(machine) else machine.memory
    has_workers = machine.disk is not None or any(isinstance(share, NineP) for share in machine.shares)
    return of_guest + _OWN_MEMORY + machine.cpus * _OF_CPU + has_workers * _OF_WORKERS


def _lower(limit: int, most: int) -> None:
    """For this process, and the program that it becomes."""
    hard = resource.getrlimit(limit)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(limit, (most, most))


def qemu_arguments(machine: Machine, numbers: Mapping[str, int], disk: GuestDisk | None) -> list[str]:
    """In QEMU's root, where its files are read-only: by a descriptor of one that is not, it could be changed.

    `numbers`: what is there to boot, and the descriptor that it becomes.
    """
    for name, number in numbers.items():
        opened = os.open(f"{BOOT}/{name}", os.O_RDONLY)
        os.dup2(opened, number)
        os.close(opened)
    most = min(_MOST_OPEN, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    _lower(resource.RLIMIT_DATA, most_memory(machine))
    if disk is not None:
        disk.bound(0, memory=machine.memory)
    return command_line(machine.replace(**{f"{name}_fd": fd for name, fd in numbers.items() if name != BASE}))
