"""Starting QEMU and virtiofsd: each in a user namespace of its own, with a root that has no more than it needs.

The supervisor forks them before it has the system call filter; they get it themselves, last of all.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final, NoReturn

from exeat.jail import libc
from exeat.jail.limits import privileges, seccomp
from exeat.jail.process.descriptors import close_all_but
from exeat.jail.vm.files.disk import BASE, GuestDisk
from exeat.jail.vm.machine import Machine, command_line
from exeat.jail.vm.tree import BOOT

_ENVIRON: Final = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "HOME": "/"}
_NOT_STARTED: Final = 127
# Each connection of the guest takes a descriptor and a quarter of a megabyte in QEMU, whatever memory the guest has.
_MOST_OPEN: Final = 1024


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
    argv = list(arguments())
    close_all_but([*kept, errors], inherited_too=True)  # what the caller left open was for the command
    for number in kept:
        os.set_inheritable(number, True)
    if keeps_rights:
        privileges.keep_over_exec()
    else:
        privileges.drop_all()
    # Their sockets come from us. By one of their own they could reach programs that listen in /usr, /opt or /nix.
    seccomp.install(seccomp.build_filter(os.uname().machine, unix_sockets=False))
    os.execve(argv[0], argv, _ENVIRON)  # noqa: S606


def reserve_numbers(names: Sequence[str]) -> dict[str, int]:
    """Of descriptors that QEMU opens itself: the lowest that are free, since a user may be allowed few."""
    return {name: os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) for name in names}


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
    if disk is not None:
        disk.bound(0, memory=machine.memory)
    return command_line(machine.replace(**{f"{name}_fd": fd for name, fd in numbers.items() if name != BASE}))
