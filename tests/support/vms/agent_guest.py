"""The agent in a real guest, with QEMU and nothing else of exeat around it: its ports are sockets of the test's."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import struct
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from exeat.jail.vm import agent
from exeat.jail.vm.initramfs import build
from exeat.jail.vm.kernel import SHARES, VIRTIOFS, find_kernel, module_files, open_kernel
from exeat.jail.vm.machine import PORTS, Disk, Machine, NineP, VirtioFs, command_line, descriptors
from exeat.jail.vm.programs import find_virtiofsd
from exeat.jail.vm.protocol import Kind
from exeat.jail.vm.shares import Served, Tree
from tests.support.programs import find, give_up
from tests.support.vms.agent_process import AgentProcess

MEMORY = 256 << 20
_MODULES = ("virtio_pci", "virtio_console", "virtio_net")
_FOR_DISKS = ("virtio_blk", "ext4")
_BOOT_S = 120
_PROGRAMS = (
    *("sh", "cat", "ip", "mount", "stat", "id", "date", "hostname", "ls", "nc", "sleep", "tty", "stty", "grep", "kill"),
    *("ps", "readlink", "touch", "wc", "dmesg", "chmod", "mkdir", "dd", "md5sum"),
)
_FOLDERS = ("bin", "dev", "proc", "sys", "run", "tmp", "etc", "work")


def make_root(folder: Path) -> Path:
    """The least that a guest can have as its root: one program, in its many names, and the folders that are needed."""
    if b"/ld-linux" in Path(find("busybox")).read_bytes():
        give_up("busybox is not static, and a guest has no library: busybox-static")
    for name in _FOLDERS:
        (folder / name).mkdir(parents=True)
    shutil.copy(find("busybox"), folder / "bin/busybox")
    for name in _PROGRAMS:
        (folder / "bin" / name).symlink_to("busybox")
    folder.chmod(0o755)
    return folder


def oem_strings(entries: Sequence[str | bytes]) -> bytes:
    """One SMBIOS structure of type 11."""
    texts = [each if isinstance(each, bytes) else f"exeat:{each}".encode() for each in entries]
    return struct.pack("<BBHB", 11, 5, 0xE00, len(texts)) + b"".join(each + b"\0" for each in texts) + b"\0"


@contextlib.contextmanager
def boot(
    share: str,
    tree: Path | None,
    firmware: bytes,
    *,
    disk: Path | None = None,
    kernel: Path,
    cache: str = "",
) -> Iterator[AgentProcess]:
    """A guest whose agent has said HELLO. `share` is how `tree` is served, by the tag root."""
    found = find_kernel(str(kernel), os.environ)
    names = [*_MODULES, *SHARES[share], *(_FOR_DISKS if disk else ())]
    with contextlib.ExitStack() as stack:
        initrd = _in_memory(build(agent.read(), module_files(found, names)))
        table = _in_memory(firmware)
        image = open_kernel(found, cache)
        ours, theirs = _pairs([*PORTS, "qmp", "console"])
        shares = stack.enter_context(_serving(share, tree)) if tree else ()
        machine = Machine(
            qemu=find("qemu-system-x86_64"),
            memory=MEMORY,
            cpus=1,
            accel="tcg",
            kernel_fd=image,
            initrd_fd=initrd,
            smbios_fd=table,
            shares=shares,
            disk=Disk(os.open(disk, os.O_RDWR | os.O_CLOEXEC), "raw") if disk else None,
        ).replace(**{f"{name}_fd": each.fileno() for name, each in theirs.items()})
        kept = descriptors(machine)
        process = subprocess.Popen(command_line(machine), pass_fds=kept, stdin=subprocess.DEVNULL)
        for port in theirs.values():
            port.close()
        for file in (image, initrd, table):
            os.close(file)
        try:
            for port in ours.values():
                port.settimeout(_BOOT_S)
            guest = AgentProcess(
                ours["control"], ours["in"], ours["out"], ours["err"], process.pid, console=ours["console"]
            )
            assert guest.hear_kind(Kind.HELLO) == struct.pack("<I", 1)
            yield guest
        finally:
            process.kill()
            process.wait()
            for port in ours.values():
                port.close()


def _pairs(names: Sequence[str]) -> tuple[dict[str, socket.socket], dict[str, socket.socket]]:
    pairs = {name: socket.socketpair() for name in names}
    return {name: pair[0] for name, pair in pairs.items()}, {name: pair[1] for name, pair in pairs.items()}


def _in_memory(content: bytes) -> int:
    file = os.memfd_create("exeat-test")
    os.write(file, content)
    os.lseek(file, 0, os.SEEK_SET)
    return file


@contextlib.contextmanager
def _serving(share: str, tree: Path) -> Iterator[tuple[VirtioFs | NineP, ...]]:
    """Virtiofsd is in a namespace of users whose only one is root, so that ordinary users can start it as well."""
    virtiofsd = find_virtiofsd(os.environ) if share == VIRTIOFS else None
    served = Served((Tree(path=str(tree)),), virtiofsd.path if virtiofsd else "", bool(virtiofsd and virtiofsd.is_rust))
    shares, servers = served.open()
    alone = ("unshare", "--user", "--map-root-user")
    started = [
        subprocess.Popen([*alone, *server.arguments()], pass_fds=server.kept, stdin=subprocess.DEVNULL)
        for server in servers
    ]
    try:
        yield shares
    finally:
        for process in started:
            process.kill()
            process.wait()
        for fd in served.to_close(shares, servers):
            os.close(fd)
