"""Facts about the kernel and the installation that decide which jail works. Reads only; works on every system."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import socket
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import exeat

_LANDLOCK = 444  # the system call landlock_create_ruleset, the same number everywhere
_NAMESPACES_OFF = (
    ("user.max_user_namespaces", "0"),
    ("kernel.unprivileged_userns_clone", "0"),
    ("kernel.apparmor_restrict_unprivileged_userns", "1"),
)
_PACKAGES = ("uvloop", "httptools", "idna", "publicsuffixlist", "aiohappyeyeballs")


@dataclass(frozen=True, slots=True)
class Fact:
    """One line of the report. `good` is None where a fact is neither good nor bad."""

    name: str
    value: str
    good: bool | None = None


def kernel_facts() -> list[Fact]:
    """What the kernel has, as far as an ordinary user may ask. On other systems only the first line."""
    facts = [Fact("kernel", f"{platform.system()} {platform.release()} {platform.machine()}")]
    if not sys.platform.startswith("linux"):
        return facts
    return facts + [check() for check in (_namespaces, _nf_tables, _seccomp, _landlock, _ipv6, _container)]


def version_facts() -> list[Fact]:
    """The versions of exeat, of Python, and of what exeat needs."""
    facts = [
        Fact("exeat", exeat.__version__),
        Fact("Python", f"{platform.python_version()} ({platform.python_implementation()})"),
    ]
    for name in _PACKAGES:
        try:
            facts.append(Fact(name, metadata.version(name)))
        except metadata.PackageNotFoundError:
            facts.append(Fact(name, "not installed as a package"))
    facts.append(_streams())
    return facts


def _streams() -> Fact:
    """What moves the bytes. Both are as strict; one costs less."""
    from exeat.gateway.flow.streams import IS_NATIVE

    without = "not built, so asyncio's: connections cost more CPU (install exeat with gcc and Python's headers)"
    return Fact("C streams", "yes" if IS_NATIVE else without)


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _namespaces() -> Fact:
    """User namespaces, and the three switches by which distributions turn them off."""
    if not Path("/proc/self/ns/user").exists():
        return Fact("user namespaces", "not in this kernel", good=False)
    off = [f"{name}={bad}" for name, bad in _NAMESPACES_OFF if _read(f"/proc/sys/{name.replace('.', '/')}") == bad]
    if off:
        return Fact("user namespaces", f"restricted by {', '.join(off)}", good=False)
    most = _read("/proc/sys/user/max_user_namespaces")
    return Fact("user namespaces", f"yes, at most {most}" if most else "yes", good=True)


def _nf_tables() -> Fact:
    """Asked by opening its netlink socket; loading it may take a right that we lack."""
    try:
        socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12).close()
    except OSError as error:
        return Fact("nf_tables", f"no netfilter: {error.strerror}", good=False)
    known = Path("/sys/module/nf_tables").exists() or Path("/proc/sys/net/netfilter").exists()
    return Fact("nf_tables", "yes" if known else "netfilter answers; nf_tables shows when a jail is built", good=True)


def _seccomp() -> Fact:
    actions = _read("/proc/sys/kernel/seccomp/actions_avail")
    return Fact("seccomp", f"yes: {actions}" if actions else "no", good=bool(actions))


def _landlock() -> Fact:
    """The ABI version; each adds something that can be refused."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    version = libc.syscall(ctypes.c_long(_LANDLOCK), None, ctypes.c_size_t(0), ctypes.c_uint(1))
    if version < 0:
        return Fact("Landlock", f"no: {os.strerror(ctypes.get_errno())}")
    return Fact("Landlock", f"ABI {version}", good=True)


def _ipv6() -> Fact:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as sock:
        sock.bind(("::1", 0))
        return Fact("IPv6", "yes")
    return Fact("IPv6", "no")


def _container() -> Fact:
    """Whether this is a container, by the marks that engines leave. It explains refusals of the kernel."""
    marks = [path for path in ("/.dockerenv", "/run/.containerenv") if Path(path).exists()]
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        marks.append("Kubernetes")
    first = _read("/proc/1/cgroup")
    marks += [word for word in ("docker", "kubepods", "containerd", "lxc") if word in first]
    return Fact("container", f"yes ({', '.join(marks)})" if marks else "no sign of one")
