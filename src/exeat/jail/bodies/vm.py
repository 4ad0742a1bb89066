"""A virtual machine in namespaces of its own: QEMU is the command there, so its guest has the jail's network."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from functools import partial
from typing import Final

from exeat.errors import ConfigError, JailError
from exeat.jail.bodies.namespaces import NamespaceJail, mounted_trust
from exeat.jail.jail import Built, Examination, Spec
from exeat.jail.net.network import GATEWAY_PORT
from exeat.jail.process.place import Place
from exeat.jail.vm import accel, agent, initramfs, kernel, programs
from exeat.jail.vm.disk import BASE, FILE_SYSTEMS, MODULES, MORE_FILE_SYSTEMS, GuestDisk
from exeat.jail.vm.furnishing import complete_environment, files_of_image, files_of_view
from exeat.jail.vm.machine import Machine
from exeat.jail.vm.options import AUTO, LEAST_MEMORY, MEMORY, TCG, VmOptions
from exeat.jail.vm.settings import Settings, smbios_bytes
from exeat.jail.vm.shares import Served
from exeat.jail.vm.supervisor import Guest, live_as_supervisor
from exeat.jail.vm.tree import MachineTree, seen_by_qemu

_HOST_OF_GUEST: Final = "10.0.2.2"  # what QEMU calls the machine it runs on: the jail
_MODULES: Final = ("virtio_pci", "virtio_console", "virtio_net")
_BOOT_S: Final = {"kvm": 20.0, "tcg": 60.0}
_ACCELERATED: Final = {"kvm": "the guest runs on the processor (kvm)", "tcg": "the guest is emulated (tcg)"}
_FASTEST_CPUS: Final = 4


class VmJail(NamespaceJail):
    def build(self, spec: Spec) -> Built:
        options = spec.vm or VmOptions()
        inherited, cache = spec.variables.inherited, spec.memory
        qemu = seen_by_qemu(programs.find_qemu(inherited))
        found = kernel.find_kernel(options.kernel, inherited)
        runs_on = accel.choose(options.accel, insists=options.insists, cache_folder=cache)
        if options.accel == AUTO and not options.quiet:
            sys.stderr.write(f"exeat: {_ACCELERATED[runs_on.kind]}: {runs_on.why}\n")
        served = _serve(found, inherited)
        uid, gid = (0, 0) if options.guest_root else (os.geteuid(), os.getegid())
        if spec.disk is None:
            own = files_of_view(spec, served.kind)
        else:
            own = files_of_image(spec, served.kind, is_root=uid == 0)
        served = served.replace(trees=own.trees)
        variables = spec.variables if spec.disk is None else spec.variables.replace(passes_on=False)
        environ = variables.build(
            proxy_url=f"http://{_HOST_OF_GUEST}:{GATEWAY_PORT}",
            own_loopback=True,
            kept_sockets=spec.unix,
            trust=mounted_trust(spec),
        )
        if spec.disk is not None:
            terminal = inherited.get("TERM", "")
            complete_environment(environ, terminal, own.home, has_terminal=spec.has_terminal)
        settings = Settings(
            root=own.root,
            uid=uid,
            gid=gid,
            cwd=own.cwd,
            home=own.home,
            hostname=own.hostname,
            mounts=own.mounts,
            forwards=_ports(spec),
            files=own.files,
            ca=own.ca,
        )
        machine = Machine(
            qemu=qemu,
            memory=_memory(options),
            cpus=options.cpus or (1 if runs_on.kind == TCG else min(_FASTEST_CPUS, os.cpu_count() or 1)),
            accel=runs_on.kind,
        )
        files = {"initrd": _initramfs(found, served, spec.disk), "smbios": smbios_bytes(settings)}
        shown = {"kernel": (kernel.open_kernel(found, cache), False)}
        if spec.disk is not None:
            shown[BASE] = (os.dup(spec.disk.base), False)
        assert spec.view is not None
        kept = () if spec.disk is None else (spec.disk.overlay,)
        tree = MachineTree(files, shown, (uid, gid), shares=own.shares, kept=kept)
        spec.view.tree = tree
        guest = Guest(
            machine,
            settings,
            tuple(spec.argv),
            environ,
            served,
            tree,
            boot_limit_s=_BOOT_S[runs_on.kind],
            time_limit_s=options.time_limit_s,
            disk=spec.disk,
        )
        if runs_on.kind != TCG:
            spec.view.devices = (*spec.view.devices, "/dev/kvm")
        sockets = self.raise_place(Place(spec, environ, life=partial(live_as_supervisor, guest)))
        return Built(sockets, None, self.init, self.namespaces, self.layers)


def _serve(found: kernel.Kernel, environ: Mapping[str, str]) -> Served:
    """virtiofs if there is a program for it, else 9p. Raises JailError if this kernel has neither."""
    server = programs.find_virtiofsd(environ) if "virtiofs" in found.shares else None
    if server is not None:
        return Served(virtiofsd=seen_by_qemu(server.path), is_rust=server.is_rust)
    if "9p" in found.shares:
        return Served()
    raise JailError(
        "the files of this machine cannot be served to a guest",
        detail=f"{found.path} has virtiofs only, and there is no virtiofsd",
        fix="install virtiofsd (Debian 12: qemu-system-common), or name a kernel with 9p by --kernel",
    )


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


def _memory(options: VmOptions) -> int:
    """Raises ConfigError for more than there is."""
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    wanted = options.memory or min(MEMORY, there // 2)
    if wanted > there:
        raise ConfigError(
            "more than this machine has", where=f"--memory {wanted >> 20}m", expected=f"less than {there >> 20}m"
        )
    if wanted < LEAST_MEMORY:
        raise ConfigError(
            "too little for a guest", where=f"--memory {wanted >> 20}m", expected=f"at least {LEAST_MEMORY >> 20}m"
        )
    return wanted & ~0xFFFFF


def _ports(spec: Spec) -> tuple[int, ...]:
    """Of loopback places that mean the host's."""
    return tuple(sorted({port for _, first, last in spec.to_host for port in range(first, min(last, first + 63) + 1)}))


def open_jail() -> VmJail:
    return VmJail()


def examine() -> Examination:
    environ = dict(os.environ)
    programs.find_qemu(environ)
    found = kernel.find_kernel("", environ)
    served = _serve(found, environ)
    return Examination(True, f"QEMU, {found.path}, files by {served.kind}")
