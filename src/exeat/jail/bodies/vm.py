"""A virtual machine in namespaces of its own: QEMU is the command there, so its guest has the jail's network."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from exeat.errors import JailError
from exeat.jail.bodies.namespaces import NamespaceJail, mounted_trust
from exeat.jail.jail import Built, Examination, Spec
from exeat.jail.net.network import GATEWAY_PORT
from exeat.jail.process.place import Place
from exeat.jail.vm import accel, agent, initramfs, kernel, programs
from exeat.jail.vm.caller import CallersTerminal
from exeat.jail.vm.files.disk import BASE, FILE_SYSTEMS, MODULES, MORE_FILE_SYSTEMS, GuestDisk
from exeat.jail.vm.files.furnishing import GuestFiles, complete_environment, files_of_image, files_of_view
from exeat.jail.vm.files.seed import Seed, choose_port
from exeat.jail.vm.guest import Guest
from exeat.jail.vm.host.memory import choose_memory
from exeat.jail.vm.machine import Machine
from exeat.jail.vm.options import AUTO, TCG, VmOptions
from exeat.jail.vm.settings import smbios_bytes, start_text
from exeat.jail.vm.shares import Served
from exeat.jail.vm.supervisor import live_as_supervisor
from exeat.jail.vm.tree import MachineTree, seen_by_qemu

if TYPE_CHECKING:
    from exeat.jail.messages import HostPorts
    from exeat.jail.vm.saved.deciding import SavedMachine

_HOST_OF_GUEST: Final = "10.0.2.2"  # what QEMU calls the machine it runs on: the jail
_MODULES: Final = ("virtio_pci", "virtio_console", "virtio_net")
_BOOT_S: Final = {"kvm": 20.0, "tcg": 60.0}
_ACCELERATED: Final = {"kvm": "the guest runs on the processor (kvm)", "tcg": "the guest is emulated (tcg)"}
_OWN_INIT: Final = 10  # times as long, for a system that starts all that it has
_FASTEST_CPUS: Final = 4
_OVERFLOW: Final = "/proc/sys/kernel/overflowgid"
_MOST_PORTS: Final = 64  # that the agent listens on


class VmJail(NamespaceJail):
    def __init__(self) -> None:
        super().__init__()
        self._terminal = CallersTerminal()

    def end(self) -> None:
        super().end()
        self._terminal.give_back_if_taken()  # the supervisor may have been killed while it had it

    def build(self, spec: Spec) -> Built:
        if spec.terminal is None:
            self._terminal.note()
        options = spec.vm or VmOptions()
        saved = _saved(options) if spec.disk is None else None  # one that was saved has no disk
        options = saved.defaults(options) if saved is not None else options
        inherited, cache = spec.variables.inherited, spec.memory
        # By what exeat was started with: who chooses variables for the command chooses nothing out here.
        qemu = seen_by_qemu(programs.find_qemu(os.environ))
        found = None if options.own_init else kernel.find_kernel(options.kernel, os.environ)
        runs_on = accel.choose(options.accel, insists=options.insists, cache_folder=cache)
        if options.accel == AUTO and not options.quiet:
            sys.stderr.write(f"exeat: {_ACCELERATED[runs_on.kind]}: {runs_on.why}\n")
        served = _serve(found, os.environ)
        uid, gid = (0, 0) if options.guest_root else (os.geteuid(), os.getegid())
        own = _own_files(spec, served.kind, is_root=uid == 0)
        served = served.replace(trees=own.trees)
        variables = spec.variables if spec.disk is None else spec.variables.replace(passes_on=False)
        environ = variables.build(
            proxy_url=f"http://{_HOST_OF_GUEST}:{GATEWAY_PORT}",
            own_loopback=True,
            kept_sockets=spec.unix,
            trust=mounted_trust(spec),
        )
        if spec.disk is not None:
            complete_environment(environ, inherited.get("TERM", ""), own.home, has_terminal=spec.has_terminal)
        settings = own.settings(uid, gid, groups_in_guest(uid), forwarded_ports(spec.to_host, quiet=options.quiet))
        settings = settings.replace(known_files=served.most_known_files())
        start_text(settings, spec.argv, environ)  # too much is said now, not when the guest has booted
        machine = Machine(
            qemu=qemu,
            memory=choose_memory(options.memory),
            cpus=options.cpus or (1 if runs_on.kind == TCG else min(_FASTEST_CPUS, os.cpu_count() or 1)),
            accel=runs_on.kind,
        )
        continues = saves = seed = None
        files: dict[str, bytes] = {}
        shown: dict[str, tuple[int, bool]] = {}
        if found is None:
            seed = Seed(choose_port(settings.forwards), os.urandom(16).hex(), agent.read(), own.hostname)
            machine = machine.replace(boots_itself=True, serial=seed.serial)
        else:
            files["initrd"] = _initramfs(found, served, spec.disk)
            shown["kernel"] = (kernel.open_kernel(found, cache), False)
            if saved is not None:
                continues, saves = saved.decide(machine, found.path, files["initrd"])
        files["smbios"] = smbios_bytes(settings if saves is None else saves.known_at_boot(settings))
        assert spec.view is not None
        kept = [options.saved_fd, options.saving_fd]
        if spec.disk is not None:
            shown[BASE] = (os.dup(spec.disk.base), False)
            kept.append(spec.disk.overlay)
        tree = MachineTree(files, shown, (uid, gid), kept, own.shares)
        guest = Guest(
            machine,
            settings,
            tuple(spec.argv),
            environ,
            served if saves is None else served.replace(trees=()),
            tree,
            boot_limit_s=_BOOT_S[runs_on.kind] * (_OWN_INIT if seed is not None else 1),
            time_limit_s=options.time_limit_s,
            disk=spec.disk,
            seed=seed,
            continues=continues,
            saves=saves,
        )
        devices = spec.view.devices if runs_on.kind == TCG else (*spec.view.devices, "/dev/kvm")
        spec = spec.replace(view=spec.view.replace(tree=tree, devices=devices))
        sockets = self.raise_place(Place(spec, environ, life=partial(live_as_supervisor, guest)))
        if options.saved_fd >= 0:
            os.close(options.saved_fd)
        return Built(sockets, None, self.init, self.namespaces, self.layers, tree)


def _saved(options: VmOptions) -> SavedMachine | None:
    if options.saved_fd < 0 and options.saving_fd < 0:
        return None
    from exeat.jail.vm.saved.deciding import SavedMachine  # for sandboxes with a name

    return SavedMachine(options)


def _serve(found: kernel.Kernel | None, environ: Mapping[str, str]) -> Served:
    """virtiofs if there is a program for it, else 9p. Raises JailError if this kernel has neither.

    None: one of an image, which is taken to know both.
    """
    server = programs.find_virtiofsd(environ) if found is None or "virtiofs" in found.shares else None
    if server is not None:
        return Served(virtiofsd=seen_by_qemu(server.path), is_rust=server.is_rust)
    if found is None or "9p" in found.shares:
        return Served()
    raise JailError(
        "the files of this machine cannot be served to a guest",
        detail=f"{found.path} has virtiofs only, and there is no virtiofsd",
        fix="install virtiofsd (Debian 12: qemu-system-common), or name a kernel with 9p by --kernel",
    )


def _own_files(spec: Spec, kind: str, *, is_root: bool) -> GuestFiles:
    return files_of_view(spec, kind) if spec.disk is None else files_of_image(spec, kind, is_root=is_root)


def _initramfs(found: kernel.Kernel, served: Served, disk: GuestDisk | None) -> bytes:
    shares = _share_modules(served) if served.trees else ()
    if disk is None:
        return initramfs.build(agent.read(), kernel.module_files(found, [*_MODULES, *shares]))
    modules = kernel.module_files(found, [*_MODULES, *MODULES, *shares], FILE_SYSTEMS)
    loaded = {name for name, _ in modules}
    more = kernel.module_files(found, (), MORE_FILE_SYSTEMS)
    return initramfs.build(agent.read(), modules, [each for each in more if each[0] not in loaded])


def _share_modules(served: Served) -> tuple[str, ...]:
    return ("virtiofs",) if served.virtiofsd else ("9p", "9pnet_virtio")


def groups_in_guest(uid: int) -> tuple[int, ...]:
    """The caller's other groups. There as in any jail, files of theirs have the group that stands for all of them.

    The guest's kernel lets the command try. Whether it may is decided outside, by what serves the files: that has the
    groups themselves.
    """
    if not uid or not set(os.getgroups()) - {os.getegid()}:
        return ()
    with open(_OVERFLOW) as file:
        return (int(file.read()),)


def forwarded_ports(to_host: Sequence[HostPorts], *, quiet: bool) -> tuple[int, ...]:
    """Of loopback places that mean the host's: as many as the agent listens on, those of small ranges first."""
    ranges = sorted({(last - first, first, last) for _, first, last in to_host})
    ports = list(dict.fromkeys(port for _, first, last in ranges for port in range(first, last + 1)))
    if len(ports) > _MOST_PORTS and not quiet:
        sys.stderr.write(
            f"exeat: a guest reaches {_MOST_PORTS} ports of this machine by its own 127.0.0.1, and {len(ports)} are "
            f"allowed: those from {ports[_MOST_PORTS]} on are left out\n"
        )
    return tuple(sorted(ports[:_MOST_PORTS]))


def open_jail() -> VmJail:
    return VmJail()


def examine() -> Examination:
    environ = dict(os.environ)
    programs.find_qemu(environ)
    found = kernel.find_kernel("", environ)
    served = _serve(found, environ)
    return Examination(True, f"QEMU, {found.path}, files by {served.kind}")
