"""Kernels and their modules as a test wants them: as few bytes as make one."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from pathlib import Path

PVH_NOTE = struct.pack("<III", 4, 4, 18) + b"Xen\0" + bytes(4)
OTHER_NOTE = struct.pack("<III", 4, 3, 1) + b"GNU\0" + b"abc\0"
USUAL = {
    "kernel/drivers/virtio/virtio.ko": "",
    "kernel/drivers/virtio/virtio_ring.ko": "",
    "kernel/drivers/virtio/virtio_pci.ko": "kernel/drivers/virtio/virtio_ring.ko kernel/drivers/virtio/virtio.ko",
    "kernel/drivers/char/virtio_console.ko": "kernel/drivers/virtio/virtio_ring.ko kernel/drivers/virtio/virtio.ko",
    "kernel/drivers/net/virtio_net.ko": "kernel/drivers/virtio/virtio_ring.ko kernel/drivers/virtio/virtio.ko",
}
FOR_VIRTIOFS = {
    "kernel/fs/fuse/fuse.ko": "",
    "kernel/fs/fuse/virtiofs.ko": "kernel/drivers/virtio/virtio_ring.ko kernel/drivers/virtio/virtio.ko "
    "kernel/fs/fuse/fuse.ko",
}
FOR_9P = {
    "kernel/net/9p/9pnet.ko": "",
    "kernel/net/9p/9pnet_virtio.ko": "kernel/net/9p/9pnet.ko kernel/drivers/virtio/virtio_ring.ko",
    "kernel/fs/9p/9p.ko": "kernel/net/9p/9pnet.ko",
}


def vmlinux(version: str = "6.1.0", notes: bytes = OTHER_NOTE + PVH_NOTE, size: int = 4096, machine: int = 62) -> bytes:
    """An ELF file for x86-64 with notes, and the sentence in which a kernel says its version."""
    head = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHI", 2, machine, 1) + struct.pack("<QQQ", 0, 64, 0)
    head += struct.pack("<IHHHHHH", 0, 64, 56, 2, 0, 0, 0)
    load = struct.pack("<II6Q", 1, 5, 0, 0, 0, 64, 64, 4096)
    note = struct.pack("<II6Q", 4, 4, 176, 0, 0, len(notes), len(notes), 4)
    content = head + load + note + notes + f"Linux version {version} (gcc) #1 SMP\n\0".encode()
    return content + bytes(max(0, size - len(content)))


def bz_image(version: str = "6.1.0", payload: bytes = b"", protocol: int = 0x20F, load_flags: int = 1) -> bytes:
    """As distributions ship it, around what is packed; its last four bytes are to say the size of that."""
    content = bytearray(5 * 512)
    content[0x1F1] = 4
    content[0x202:0x206] = b"HdrS"
    struct.pack_into("<H", content, 0x206, protocol)
    struct.pack_into("<H", content, 0x20E, 0x300 - 0x200)
    struct.pack_into("<H", content, 0x236, load_flags)
    struct.pack_into("<II", content, 0x248, 16, len(payload))
    text = f"{version} (builder@example) #1 SMP\0".encode()
    content[0x300 : 0x300 + len(text)] = text
    return bytes(content) + bytes(16) + payload + b"the rest"


def with_size(packed: bytes, unpacked: bytes) -> bytes:
    return packed + len(unpacked).to_bytes(4, "little")


def lz4_packed(content: bytes) -> bytes | None:
    """In the form of kernels. None where there is no library."""
    try:
        library = ctypes.CDLL("liblz4.so.1")
    except OSError:
        return None
    packed = b"\x02\x21\x4c\x18"
    for at in range(0, len(content), 8 << 20):
        block = content[at : at + (8 << 20)]
        room = ctypes.create_string_buffer(len(block) + len(block) // 255 + 16)
        length = library.LZ4_compress_default(block, room, len(block), len(room))
        packed += length.to_bytes(4, "little") + room.raw[:length]
    return packed


def install(
    root: Path, version: str, modules: dict[str, str], builtin: Sequence[str] = (), kernel: bytes = b""
) -> Path:
    """A kernel in /boot below the root, and its modules. The content of a module is ELF's magic and its own name."""
    boot, folder = root / "boot", root / "lib/modules" / version
    boot.mkdir(parents=True, exist_ok=True)
    folder.mkdir(parents=True)
    path = boot / f"vmlinuz-{version}"
    path.write_bytes(kernel or bz_image(version))
    (folder / "modules.dep").write_text("".join(f"{name}: {needs}\n" for name, needs in modules.items()))
    (folder / "modules.builtin").write_text("".join(f"{name}\n" for name in builtin))
    for name in modules:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"\x7fELF" + Path(name).name.encode())
    return path
