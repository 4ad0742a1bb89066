"""The modules of a kernel, as depmod has listed them in its folder. The lists are searched, never parsed as a whole.

modules.dep has half a megabyte, of which a guest needs twenty lines. A line names all that a module depends on,
the first to be loaded at its end.
"""

from __future__ import annotations

import os
from typing import Final

from exeat.errors import JailError
from exeat.jail.vm.host.compression import unpack

_ENDINGS: Final = (b".ko:", b".ko.xz:", b".ko.zst:", b".ko.gz:")
_MOST_MODULE: Final = 64 << 20


class ModuleLists:
    """What one kernel has. Raises OSError if there is no such folder, or depmod was never run for it."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._dependencies = _content(folder, "modules.dep")
        self._builtin = _content(folder, "modules.builtin")

    def has(self, *names: str) -> bool:
        """All of these, as modules or built in."""
        return all(self.is_builtin(name) or self.needs_of(name) is not None for name in names)

    def is_builtin(self, name: str) -> bool:
        return any(b"/%s.ko\n" % spelt in self._builtin for spelt in _spellings(name))

    def needs_of(self, name: str) -> list[str] | None:
        """The files to load for it, in their order, itself last. None: it is not among the modules."""
        for spelt in _spellings(name):
            for ending in _ENDINGS:
                at = self._dependencies.find(b"/%s%s" % (spelt, ending))
                if at >= 0:
                    return self._files_on_line(at)
        return None

    def _files_on_line(self, at: int) -> list[str]:
        start = self._dependencies.rfind(b"\n", 0, at) + 1
        end = self._dependencies.find(b"\n", at)
        own, _, others = self._dependencies[start : end if end >= 0 else None].partition(b":")
        return [os.fsdecode(path) for path in (*reversed(others.split()), own)]


def _spellings(name: str) -> tuple[bytes, ...]:
    """Linux takes - and _ in the name of a module for the same, and files have either."""
    plain = name.replace("-", "_")
    return tuple(dict.fromkeys(each.encode() for each in (name, plain, plain.replace("_", "-"))))


def _content(folder: str, name: str) -> bytes:
    with open(os.path.join(folder, name), "rb") as file:
        return file.read()


def module_name(path: str) -> str:
    """As the kernel calls it: virtio_pci for kernel/drivers/virtio/virtio_pci.ko.xz."""
    return os.path.basename(path).partition(".ko")[0].replace("-", "_")


def read_module(folder: str, path: str) -> bytes:
    """A module as the kernel takes it, that is, not compressed. Raises JailError."""
    full = os.path.join(folder, path)
    try:
        with open(full, "rb") as file:
            content = file.read(_MOST_MODULE)
        if not content.startswith(b"\x7fELF"):
            content = unpack(content, _MOST_MODULE)
    except (OSError, ValueError) as error:
        raise JailError(
            f"the kernel module {module_name(path)} cannot be read",
            detail=f"{full}: {error}",
            fix="install the kernel's package again, or name another kernel: --kernel FILE",
        ) from None
    if not content.startswith(b"\x7fELF"):
        raise JailError(f"the kernel module {module_name(path)} is damaged", detail=f"{full} holds no ELF file")
    return content
