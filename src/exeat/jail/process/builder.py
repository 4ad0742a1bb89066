"""The two processes between `exeat run` and the command.

The builder makes the namespaces and all that is in them, then leaves. Init is the first process of the jail's
PID namespace: it starts the command, reaps what is orphaned, passes signals on, and takes everything with it when it
ends. Neither returns to the caller's code; they speak to the runner over one socket.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from importlib.machinery import BuiltinImporter, FrozenImporter
from typing import NoReturn

from exeat.jail import libc
from exeat.jail.files import kernelfs, mounts
from exeat.jail.files.shared_sockets import find_sockets
from exeat.jail.files.trees import usual_modes
from exeat.jail.files.view import NoViewError
from exeat.jail.limits import landlock, nesting, privileges
from exeat.jail.limits.nesting import Attempts
from exeat.jail.limits.seccomp import Nesting
from exeat.jail.messages import (
    EXEC_FAILED,
    FAILED,
    INIT,
    READY,
    SOCKETS,
    TRIED,
    pack_failure,
)
from exeat.jail.net.network import HostPorts, build_network
from exeat.jail.process import descriptors, streams
from exeat.jail.process.becoming import become, places_of
from exeat.jail.process.init import Watch
from exeat.jail.signals import FOR_COMMAND, STOPPING, open_signalfd, restore_signals

_NAMESPACES = libc.CLONE_NEWNS | libc.CLONE_NEWPID | libc.CLONE_NEWIPC
_TIOCSCTTY = 0x540E  # the same on every machine that there is a jail for


class OwnTerminal:
    """A terminal for the command, kept apart from its caller's by somebody in between."""

    __slots__ = ("descriptor", "hidden")

    def __init__(self, descriptor: int, hidden: int) -> None:
        self.descriptor = descriptor
        self.hidden = hidden  # the device number of the caller's, which the command must not reach by any name


class Spec:
    """What to run and how: everything that is decided before the first fork."""

    __slots__ = (
        "argv",
        "cwd",
        "environ",
        "nesting",
        "new_session",
        "own_network",
        "places",
        "run_as",
        "terminal",
        "to_host",
        "view",
    )

    def __init__(
        self,
        argv: list[str],
        environ: dict[str, str],
        cwd: str,
        view: mounts.View,
        *,
        own_network: bool,
        run_as: tuple[int, int] | None = None,
        new_session: bool = False,
        terminal: OwnTerminal | None = None,
        to_host: list[HostPorts] | None = None,
        nest: bool = False,
    ) -> None:
        self.argv = argv
        self.places = places_of(argv[0], environ)
        self.environ = environ
        self.cwd = cwd
        self.view = view
        self.own_network = own_network
        self.run_as = run_as  # uid and gid, where they are not the caller's
        self.to_host = to_host or []  # loopback places that mean the host's, not the jail's own
        self.nesting = Nesting(allowed=nest)  # may the command make user namespaces?
        self.new_session = new_session  # no terminal: keep the command's signals to itself
        self.terminal = terminal  # in the place of the caller's; init leads its session


class _StepError(Exception):
    """What the builder was doing when the kernel refused."""

    def __init__(self, step: str, error: OSError) -> None:
        super().__init__(step)
        self.step = step
        self.error = error


def build(spec: Spec, control: socket.socket) -> NoReturn:
    """The builder's life. Reports sockets and init's pid, or what failed."""
    try:
        _build(spec, control)
    except _StepError as problem:
        _report_failure(control, problem.step, problem.error)
    except BaseException as problem:
        _report_failure(control, "build", OSError(0, f"{type(problem).__name__}: {problem}"))
    os._exit(1)


def _build(spec: Spec, control: socket.socket) -> None:
    libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        hidden = descriptors.Hidden(spec.view.not_there)
        descriptors.close_ways_out(hidden, files_too=spec.view.layers is not None)
    except OSError as error:
        raise _StepError("descriptors", error) from None
    dead_sockets = find_sockets(spec.view.shared, spec.view.silent)
    uid, is_root = os.getuid(), os.geteuid() == 0
    own_users = _enter_namespaces(own_network=spec.own_network, is_root=is_root)
    if own_users:
        nesting.prepare(spec.nesting)
    if spec.own_network:
        try:
            sockets = build_network(spec.to_host)
        except OSError as error:
            raise _StepError("network", error) from None
        socket.send_fds(control, [SOCKETS], [each.fileno() for each in sockets.all()])
        sockets.close()
    try:
        positions = streams.hold_read_only() if spec.view.layers is not None else {}
    except OSError as error:
        raise _StepError("descriptors", error) from None
    _load_no_more_code(spec)
    try:
        shown_uid = spec.run_as[0] if spec.run_as else uid
        with usual_modes():
            layers = mounts.build_view(
                spec.view,
                dead_sockets,
                uid=shown_uid,
                environ=spec.environ,
                program=spec.argv[0],
                cwd=spec.cwd,
                own_users=own_users,
                hidden_terminal=spec.terminal.hidden if spec.terminal is not None else 0,
            )
            kernelfs.close_doors(is_root=is_root)
            if spec.terminal is not None:
                kernelfs.hide_terminals_elsewhere(mounts.BLANK)
            if spec.run_as is not None:
                from exeat.jail.limits.own_user import furnish  # noqa: PLC0415 - root's jail only; loaded by now

                furnish(*spec.run_as)
    except OSError as error:
        raise _StepError("view" if isinstance(error, NoViewError) else "mounts", error) from None
    namespaces = _own_namespaces(own_users=own_users) if any(spec.view.holdings) else []
    init = os.fork()
    if init == 0:
        for each in (layers, *namespaces):
            if each >= 0:
                os.close(each)
        live_as_init(spec, control, positions, is_root=is_root)
    sent = [*namespaces, *([layers] if layers >= 0 else [])]
    socket.send_fds(control, [INIT + f"{init} {len(namespaces)}".encode()], sent)
    os._exit(0)


def _load_no_more_code(spec: Spec) -> None:
    """In the view lies what earlier runs have left, where exeat's own code is, too. The command may change it later."""
    if spec.view.trust is not None:
        import exeat.jail.files.truststore  # noqa: PLC0415 - for runs that look into TLS
    if spec.run_as is not None:
        import exeat.jail.limits.own_user  # noqa: F401, PLC0415 - root's jail only
    sys.meta_path[:] = [BuiltinImporter, FrozenImporter]


def _own_namespaces(*, own_users: bool) -> list[int]:
    """The ways back in for the runner, should a file have to be held again."""
    kinds = ("user", "mnt") if own_users else ("mnt",)
    try:
        return [os.open(f"/proc/self/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in kinds]
    except OSError as error:
        raise _StepError("mounts", error) from None


def _enter_namespaces(*, own_network: bool, is_root: bool) -> bool:
    """True: there is a namespace of users as well, which root can do without."""
    flags = _NAMESPACES | (libc.CLONE_NEWNET if own_network else 0)
    if is_root:
        # Root needs no user namespace, and without one files keep their owners in the command's eyes.
        try:
            libc.unshare(flags)
        except OSError as error:
            if not own_network:
                raise _StepError("namespaces", error) from None
        else:
            return False
    uid, gid = os.geteuid(), os.getegid()
    try:
        libc.unshare(flags | libc.CLONE_NEWUSER)
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{uid} {uid} 1")
        _write("/proc/self/gid_map", f"{gid} {gid} 1")
    except OSError as error:
        raise _StepError("namespaces", error) from None
    return True


def _write(path: str, content: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, content.encode())
    finally:
        os.close(descriptor)


def live_as_init(spec: Spec, control: socket.socket, positions: dict[int, int], *, is_root: bool) -> NoReturn:
    """Init's life: process 1 of the jail. When it ends, the kernel ends all others.

    `positions`: standard streams that are not the caller's own any more, and where they stood.
    """
    try:
        _settle(spec, control, is_root=is_root)
        for number in STOPPING:
            signal.signal(number, signal.SIG_IGN)
        signals = open_signalfd([signal.SIGCHLD, *FOR_COMMAND])
        if spec.terminal is not None:
            _lead_session(spec.terminal)
        control.send(READY)
        # The word to go comes when the builder is gone and the runner is our parent, not before.
        if not control.recv(1):
            os._exit(1)
        libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)
        if _is_gone(control):
            os._exit(1)
        attempts = Attempts(lambda name: control.send(TRIED + name.encode()))
        command = os.fork()
        if command == 0:
            _become_command(spec, control, attempts)
        leads = spec.terminal is not None
        shares = not spec.new_session and not leads
        Watch(command, signals, control, positions, attempts, leads_session=leads, shares_group=shares).go_on()
    except _StepError as problem:
        _report_failure(control, problem.step, problem.error)
    except BaseException as problem:
        _report_failure(control, "keep", OSError(0, f"{type(problem).__name__}: {problem}"))
    os._exit(1)


def _lead_session(terminal: OwnTerminal) -> None:
    """Be to the command what a shell is to a job: without a parent in its session it could not be stopped (Ctrl-Z)."""
    try:
        os.setsid()
        libc.call("ioctl", terminal.descriptor, _TIOCSCTTY, 0)
    except OSError as error:
        raise _StepError("terminal", error) from None


def _settle(spec: Spec, control: socket.socket, *, is_root: bool) -> None:
    """Lose every privilege. From here on this process can do no more than the command."""
    try:
        kernelfs.mount_proc(is_root=is_root)
    except OSError as error:
        raise _StepError("proc", error) from None
    try:
        # What exeat's own process had open: its log, the sockets of the gateway, folders of the host.
        own = [control.fileno(), spec.terminal.descriptor if spec.terminal is not None else -1]
        descriptors.close_all_but(own)
    except OSError as error:
        raise _StepError("descriptors", error) from None
    try:
        if spec.run_as is not None:
            uid, gid = spec.run_as
            os.setgroups([])
            os.setresgid(gid, gid, gid)
            # Keeps the capabilities over the change of uid, for drop_all to give up one by one.
            libc.prctl(libc.PR_SET_KEEPCAPS, 1)
            os.setresuid(uid, uid, uid)
        privileges.drop_all()
        # Init is a copy of the runner: its memory and environment are not for the command to read.
        privileges.hide_arguments(b"exeat")
        privileges.hide_memory()
    except OSError as error:
        raise _StepError("privileges", error) from None
    try:
        os.chdir(spec.cwd)
    except OSError as error:
        raise _StepError("own folder" if spec.run_as else "folder", error) from None


def _is_gone(control: socket.socket) -> bool:
    try:
        return not control.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False


def _become_command(spec: Spec, control: socket.socket, attempts: Attempts) -> NoReturn:
    try:
        if spec.new_session:
            os.setsid()
        if spec.terminal is not None:
            os.setpgid(0, 0)
            os.tcsetpgrp(spec.terminal.descriptor, os.getpid())  # SIGTTOU is ignored until the next line
        restore_signals()
        shared_network = not spec.own_network
        # Also keeps signals inside: the command is in its caller's process group, and so is who else runs in that job.
        scoped = landlock.scope_abstract_sockets()
        unix_sockets = scoped or not shared_network
        nesting.install_filter(attempts, spec.nesting, unix_sockets=unix_sockets, shared_network=shared_network)
        become(spec.places, spec.argv, spec.environ)
    except OSError as error:
        control.send(EXEC_FAILED + pack_failure("exec", OSError(error.errno, error.strerror)))
    except BaseException as problem:
        control.send(FAILED + pack_failure("exec", OSError(0, f"{type(problem).__name__}: {problem}")))
    os._exit(127)


def _report_failure(control: socket.socket, step: str, error: OSError) -> None:
    try:
        control.send(FAILED + pack_failure(step, error))
    except OSError:
        pass  # nobody is left to be told
