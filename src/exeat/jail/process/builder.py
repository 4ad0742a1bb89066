"""The builder: makes the namespaces and everything in them, starts init, and exits.

It never returns to the caller's code, and speaks to the runner over one socket.
"""

from __future__ import annotations

import os
import signal
import socket
from typing import NoReturn

from exeat.jail import libc
from exeat.jail.files import kernelfs, mounts
from exeat.jail.files.mounts import find_sockets
from exeat.jail.files.trees import usual_modes
from exeat.jail.limits import nesting
from exeat.jail.limits.late_code import load_no_more_code
from exeat.jail.messages import InitStarted, Word, send
from exeat.jail.net.network import build_network
from exeat.jail.process import descriptors
from exeat.jail.process.init import live_as_init
from exeat.jail.process.place import Place, Step, StepError, report

_NAMESPACES = libc.CLONE_NEWNS | libc.CLONE_NEWPID | libc.CLONE_NEWIPC


def build(place: Place, control: socket.socket) -> NoReturn:
    """The builder's life. Reports sockets and init's pid, or what failed."""
    try:
        _build(place, control)
    except BaseException as problem:
        report(control, "build", problem)
    finally:
        os._exit(1)  # whatever happens: this is a fork, and what called it is the runner's


def _build(place: Place, control: socket.socket) -> None:
    libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)
    view = place.view
    has_layers = view.layers is not None
    with Step("descriptors"):
        descriptors.close_ways_out(descriptors.Hidden(view.not_there), files_too=has_layers)
    dead_sockets = find_sockets(view.shared, view.silent)
    uid, is_root = os.getuid(), os.geteuid() == 0
    own_users = _enter_namespaces(own_network=place.own_network, is_root=is_root)
    if own_users:
        nesting.prepare(place.nesting)
    if place.own_network:
        with Step("network"):
            sockets = build_network(place.spec.to_host)
        send(control, Word.SOCKETS, [each.fileno() for each in sockets.all()])
        sockets.close()
    with Step("descriptors"):
        positions = descriptors.hold_read_only() if has_layers else {}
    _load_no_more_code(place)
    with Step("mounts"), usual_modes():
        layers = _make_view(place, dead_sockets, uid=uid, own_users=own_users, is_root=is_root)
    namespaces = _own_namespaces(own_users=own_users) if any(view.holdings) else []
    init = os.fork()
    if init == 0:
        for each in (layers, *namespaces):
            if each >= 0:
                os.close(each)
        live_as_init(place, control, positions, is_root=is_root)
    send(control, InitStarted(init, len(namespaces)), [*namespaces, *([layers] if layers >= 0 else [])])
    os._exit(0)


def _load_no_more_code(place: Place) -> None:
    """In the view lies what earlier runs have left, where exeat's own code is, too. The command may change it later."""
    if place.view.trust is not None:
        import exeat.jail.files.truststore  # for runs that look into TLS
    if place.run_as is not None:
        import exeat.jail.limits.own_user  # noqa: F401 - root's jail only
    load_no_more_code()


def _make_view(place: Place, dead_sockets: list[str], *, uid: int, own_users: bool, is_root: bool) -> int:
    """What the command sees of files. A descriptor of its layers; -1 if there are none."""
    spec = place.spec
    layers = mounts.build_view(
        place.view,
        dead_sockets,
        uid=place.run_as[0] if place.run_as else uid,
        environ=place.environ,
        program=spec.argv[0],
        cwd=spec.cwd,
        own_users=own_users,
        hidden_terminal=spec.terminal.hidden if spec.terminal is not None else 0,
    )
    kernelfs.close_doors(is_root=is_root)
    if spec.terminal is not None:
        kernelfs.hide_terminals_elsewhere(mounts.BLANK)
    if place.run_as is not None:
        from exeat.jail.limits.own_user import furnish  # root's jail only; loaded by now

        furnish(*place.run_as)
    if place.view.tree is not None:
        place.view.tree.finish(place.view.not_there, mounts.BLANK)
    return layers


def _own_namespaces(*, own_users: bool) -> list[int]:
    """The ways back in for the runner, should a file have to be held again."""
    kinds = ("user", "mnt") if own_users else ("mnt",)
    with Step("mounts"):
        return [os.open(f"/proc/self/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in kinds]


def _enter_namespaces(*, own_network: bool, is_root: bool) -> bool:
    """True: there is a namespace of users as well, which root can do without."""
    flags = _NAMESPACES | (libc.CLONE_NEWNET if own_network else 0)
    if is_root:
        # Root needs no user namespace, and without one files keep their owners in the command's eyes.
        try:
            libc.unshare(flags)
        except OSError as error:
            if not own_network:
                raise StepError("namespaces", error) from None
        else:
            return False
    uid, gid = os.geteuid(), os.getegid()
    with Step("namespaces"):
        libc.unshare(flags | libc.CLONE_NEWUSER)
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{uid} {uid} 1")
        _write("/proc/self/gid_map", f"{gid} {gid} 1")
    return True


def _write(path: str, content: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, content.encode())
    finally:
        os.close(descriptor)
