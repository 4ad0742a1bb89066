"""The kernel that a guest boots: one of this machine's, or the one that the user names.

A kernel is judged by its modules, before anything is started: it must know QEMU's devices and a way to share files.
The first that is good is taken. Those made for virtual machines come first, because they boot in a third of the time.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from exeat.errors import JailError
from exeat.jail.vm.host.kernel_image import UnusableError, read_image
from exeat.jail.vm.host.modules import ModuleLists, module_name, read_module
from exeat.jail.vm.programs import GET_VIRTIOFSD, find_virtiofsd
from exeat.paths import using
from exeat.values import Value

VARIABLE: Final = "EXEAT_KERNEL"
VIRTIOFS, NINE_P = "virtiofs", "9p"
# What each way of sharing files needs of the kernel. The faster one first.
SHARES: Final = {VIRTIOFS: ("virtiofs",), NINE_P: ("9p", "9pnet_virtio")}
NEEDED: Final = ("virtio_pci", "virtio_console", "virtio_net")
_FOR_GUESTS: Final = frozenset({"cloud", "kvm", "virt", "virtual"})  # parts of their versions
_SHOWN: Final = 3  # kernels in an explanation
_GET_KERNEL: Final = (
    "install one: sudo apt install linux-image-cloud-amd64 (Debian), linux-image-virtual (Ubuntu); "
    "sudo dnf install kernel-core kernel-modules (Fedora); sudo pacman -S linux (Arch); or name one: --kernel FILE"
)


class Kernel(Value):
    """`shares`: the ways of sharing files that it knows and that this machine can serve, the better one first."""

    path: str
    version: str
    modules_folder: str
    shares: tuple[str, ...]


def find_kernel(named: str, environ: Mapping[str, str], *, root: str = "") -> Kernel:
    """The one that --kernel or EXEAT_KERNEL names, else one of those that are installed. Raises JailError.

    `root`: where /boot and /lib are looked for.
    """
    served = tuple(SHARES) if find_virtiofsd(environ) else (NINE_P,)
    if path := named or environ.get(VARIABLE, ""):
        try:
            return _judge(os.path.abspath(path), served, root)
        except (OSError, UnusableError) as error:
            raise _named_refused(path, error, "--kernel" if named else VARIABLE) from None
    refused: dict[str, OSError | UnusableError] = {}
    for path in _candidates(root):
        try:
            return _judge(path, served, root)
        except (OSError, UnusableError) as error:
            refused[path] = error
    raise _none_usable(refused)


def _candidates(root: str) -> list[str]:
    """Newest first; among them the running one first; before all, those made for virtual machines."""
    boot, modules = f"{root}/boot", f"{root}/lib/modules"
    paths = {name.removeprefix("vmlinuz-"): f"{boot}/{name}" for name in _names(boot) if name.startswith("vmlinuz-")}
    for version in _names(modules):  # Fedora, Arch and openSUSE have them here as well, and Arch readable only here
        inside = f"{modules}/{version}/vmlinuz"
        if os.path.exists(inside):
            paths[version] = inside
    running = os.uname().release

    def rank(version: str) -> tuple[bool, bool, list[int]]:
        return not _FOR_GUESTS.isdisjoint(version.split("-")), version == running, _numbers(version)

    return [paths[version] for version in sorted(paths, key=rank, reverse=True)]


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _numbers(version: str) -> list[int]:
    """To compare versions by: 6.10 is newer than 6.9."""
    return [int(part) for part in "".join(c if c in "0123456789" else " " for c in version).split()]


def _judge(path: str, served: Iterable[str], root: str) -> Kernel:
    """Raises OSError and UnusableError."""
    with using(_open_file(path)) as file:
        version = read_image(file).version
    lists = _find_modules(path, version, root)
    missing = [name for name in NEEDED if not lists.has(name)]
    if missing:
        raise UnusableError(f"has no {', '.join(missing)}, so it does not know QEMU's devices")
    known = [share for share, names in SHARES.items() if lists.has(*names)]
    if not known:
        raise UnusableError("has neither virtiofs nor 9p, so files cannot be shared with it")
    shares = tuple(share for share in known if share in served)
    if not shares:
        raise UnusableError(f"shares files by {known[0]} alone, which needs virtiofsd: {GET_VIRTIOFSD}")
    return Kernel(path, version, lists.folder, shares)


def _open_file(path: str) -> int:
    """Nothing that could keep us waiting, as a pipe would. Raises OSError and UnusableError."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    mode = os.fstat(file).st_mode
    if stat.S_ISREG(mode):
        return file
    os.close(file)
    raise UnusableError("is a folder: name the kernel's file in it" if stat.S_ISDIR(mode) else "is not a regular file")


def _find_modules(path: str, version: str, root: str) -> ModuleLists:
    """Next to the kernel (in its package, unpacked somewhere), else where they are installed."""
    own = os.path.dirname(path)
    package = os.path.dirname(own).rstrip("/")
    folders = [f"{base}/lib/modules/{version}" for base in (package, f"{package}/usr", root)]
    if os.path.basename(own) == version:
        folders.insert(0, own)
    for folder in folders:
        try:
            if _is_of_kernel(folder, path):
                return ModuleLists(folder)
        except OSError:
            continue
    for folder in folders:
        if os.path.isdir(os.path.join(folder, "kernel")):
            base = folder.removesuffix(f"/lib/modules/{version}") or "/"
            raise UnusableError(f"has modules in {folder} that are not listed: run `depmod -b {base} {version}`")
    raise UnusableError(f"has no modules here: there is no {folders[-1]}")


def _is_of_kernel(folder: str, path: str) -> bool:
    """A folder above the kernel's may be one that all users write to, such as /tmp. Raises OSError."""
    return os.stat(folder).st_uid in (0, os.geteuid(), os.stat(path).st_uid)


def module_files(
    kernel: Kernel, names: Sequence[str], optional: Sequence[str] = (), missing: list[str] | None = None
) -> list[tuple[str, bytes]]:
    """The modules and what they depend on, each with its name and content, in the order to load them in.

    What is built in is left out. The optional ones that this kernel does not have are put into `missing`.
    Raises JailError.
    """
    try:
        lists = ModuleLists(kernel.modules_folder)
    except OSError as error:
        raise JailError("the kernel's modules cannot be read", detail=str(error), fix=_GET_KERNEL) from None
    paths: dict[str, None] = {}
    for name in (*names, *optional):
        needs = lists.needs_of(name)
        if needs:
            paths |= dict.fromkeys(needs)
        elif lists.is_builtin(name):
            continue
        elif name in names:
            raise JailError(
                f"the kernel has no module {name}, which a guest needs here",
                detail=f"{kernel.path}: neither in {kernel.modules_folder} nor built in",
                fix="name another kernel: --kernel FILE",
            )
        elif missing is not None:
            missing.append(name)
    return [(module_name(path), read_module(lists.folder, path)) for path in paths]


def open_kernel(kernel: Kernel, cache_folder: str) -> int:
    """A descriptor of what QEMU boots: the kernel unpacked, which saves an emulated guest seconds, else its file.

    It is closed on exec, as all are. `cache_folder` is the user's, for the unpacked one; "" keeps none.
    Raises JailError.
    """
    from exeat.jail.vm.host.unpacked import open_unpacked

    try:
        with using(_open_file(kernel.path)) as file:
            unpacked = open_unpacked(file, read_image(file), cache_folder)
            return os.dup(file) if unpacked is None else unpacked
    except (OSError, UnusableError) as error:
        raise _named_refused(kernel.path, error, "--kernel") from None


def _named_refused(path: str, error: OSError | UnusableError, by: str) -> JailError:
    public = f"the kernel {path} cannot be used"
    if isinstance(error, UnusableError):
        return JailError(public, detail=f"it {error}", fix=f"name another one ({by}), or none: exeat looks for one")
    match error.errno:
        case errno.EACCES:
            return JailError(public, detail="you may not read it", fix=_make_readable(path))
        case errno.ENOENT:
            return JailError(public, detail="there is no such file", fix=f"name another one ({by}), or none")
        case _:
            return JailError(public, detail=error.strerror or str(error))


def _make_readable(path: str) -> str:
    return f"sudo chmod +r {path} (Ubuntu makes every new one readable for root alone)"


def _none_usable(refused: Mapping[str, OSError | UnusableError]) -> JailError:
    """Why none of those that are there will do."""
    public = "--vm needs a kernel for the guest, and none here can be used"
    if not refused:
        return JailError(public, detail="there is no /boot/vmlinuz-*", fix=_GET_KERNEL, is_missing=True)
    secret = [path for path, error in refused.items() if isinstance(error, OSError) and error.errno == errno.EACCES]
    if secret:
        detail = f"you may not read {secret[0]}"
        return JailError(public, detail=detail, fix=_make_readable(secret[0]), is_missing=True)
    reasons = [f"{path} {_reason(error)}" for path, error in refused.items()]
    more = f"; and {len(reasons) - _SHOWN} more" if len(reasons) > _SHOWN else ""
    return JailError(public, detail="; ".join(reasons[:_SHOWN]) + more, fix=_GET_KERNEL, is_missing=True)


def _reason(error: OSError | UnusableError) -> str:
    return str(error) if isinstance(error, UnusableError) else f"cannot be read ({error.strerror})"
