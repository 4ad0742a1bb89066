"""Mounts files over an image's from within the container, if exeat can enter its mounts.

In a process of its own, before anything else runs there. So nothing has to be asked of the engine, and stores are found
as in every other jail. Whatever the image has at these paths, links included, leads to places in the container.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress

from exeat.errors import JailError
from exeat.jail.container.accounts import Accounts, with_account
from exeat.jail.files.kernelfs import read_only
from exeat.jail.files.mounts import BUNDLE, OWN_CERTIFICATE
from exeat.jail.files.truststore import cover_stores, put_over
from exeat.jail.libc import MS_NODEV, MS_NOEXEC, MS_NOSUID, call, mount
from exeat.jail.limits.late_code import in_a_fork, load_no_more_code
from exeat.jail.limits.privileges import hide_memory
from exeat.trust.places import BUNDLES
from exeat.trust.store import certificates_of, java_key_store, joined
from exeat.values import Value

# Mounted by the engine, from the run's folder: what is written there outside is seen inside.
OWN = {"passwd": "/run/exeat/passwd", "group": "/run/exeat/group"}
ASIDE = "/run/exeat/aside"
JAVA = "/run/exeat/cacerts"
_MOST_BYTES = 4 << 20


class Furniture(Value):
    """`folder` is the run's, outside. `subject_hash` is that of the authority; "" if TLS is not looked into."""

    folder: str
    user: str
    home: str
    subject_hash: str = ""
    environ: Mapping[str, str] = {}
    program: str = ""
    cwd: str = "/"


def furnish_inside(namespaces: Sequence[int], wanted: Furniture) -> None:
    """Raises JailError."""
    if not namespaces:  # it would happen to this machine
        raise JailError("there is no way into the container's mounts", fix="is the engine in another container?")
    if why := in_a_fork(lambda: _furnish(namespaces, wanted)):
        raise JailError("the container's own files could not be put in place", detail=why)


def _furnish(namespaces: Sequence[int], wanted: Furniture) -> None:
    names = [*OWN, *(("ca-bundle.pem", "cacerts") if wanted.subject_hash else ())]
    files = {name: os.open(f"{wanted.folder}/{name}", os.O_RDWR | os.O_CLOEXEC) for name in names}
    java_key_store(())  # loads a codec
    load_no_more_code()  # from here on every path is the image's
    for namespace in namespaces:
        call("setns", namespace, 0)
    hide_memory()  # what it can do is more than others of our user may
    found = Accounts(_read("/etc/passwd"), _read("/etc/group"))
    own = with_account(found, wanted.user, wanted.home)
    for name, text in (("passwd", own.passwd), ("group", own.group)):
        _write(files[name], text)
        if os.path.isfile(f"/etc/{name}"):  # nothing can be made here
            put_over(OWN[name], os.path.realpath(f"/etc/{name}"))
    if wanted.subject_hash:
        _trust(files, wanted)


def _trust(files: Mapping[str, int], wanted: Furniture) -> None:
    pem = os.pread(files["ca-bundle.pem"], _MOST_BYTES, 0)
    pem = joined(pem, next(filter(None, map(_read, BUNDLES)), b""))
    _write(files["ca-bundle.pem"], pem)
    _write(files["cacerts"], java_key_store(certificates_of(pem)))
    mount("exeat", ASIDE, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=755,size=4m")
    with suppress(OSError):  # why the command cannot be there is found later
        os.chdir(wanted.cwd)
    cover_stores(BUNDLE, JAVA, OWN_CERTIFICATE, wanted.subject_hash, wanted.environ, wanted.program, f"{ASIDE}/stores")
    read_only(ASIDE)


def _read(path: str) -> bytes:
    """b"" if that is no file, or too large. An image can have devices anywhere, and this process may open them."""
    if not os.path.isfile(path):
        return b""
    with suppress(OSError), open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        content = file.read(_MOST_BYTES + 1)
        return content if len(content) <= _MOST_BYTES else b""
    return b""


def _write(descriptor: int, content: bytes) -> None:
    os.ftruncate(descriptor, 0)
    at = 0
    while at < len(content):
        at += os.pwrite(descriptor, content[at:], at)
