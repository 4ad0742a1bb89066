"""The kinds of jail, and which are available here. Asking for an unavailable one is an error.

A kind is a line in `BODIES` and a module of that name in `exeat.jail.bodies`, with `open_jail` and `examine`.
"""

from __future__ import annotations

import os
import sys
from enum import Enum
from importlib import import_module
from typing import TYPE_CHECKING, Final, Protocol, cast

from exeat.errors import JailError
from exeat.jail.jail import Examination
from exeat.values import Value

if TYPE_CHECKING:
    from exeat.jail.jail import Jail


class Hides(Enum):
    """How a jail keeps files from its command."""

    BY_MOUNTS = "the command has a view of its own"
    BY_PATH = "exeat's own files are refused by their names"
    BY_IMAGE = "the command has an image's files, and what is mounted there"
    NOTHING = "the command has the files of its caller"


class Body(Value):
    """What can be said about a kind of jail without loading it."""

    kind: str
    system: str = ""  # as `sys.platform` has it; "": any
    hides: Hides = Hides.NOTHING
    by_itself: bool = False  # taken without being asked for, where it is available
    needs_root: bool = False
    hides_sockets: bool = False  # Unix sockets of the host, but for those that are named
    needs_variables: bool = False  # it is nothing without those that name the proxy
    nests: bool = False  # the command may make user namespaces
    own_kernel: bool = False  # the command has one, and meets the host's only by way of QEMU
    own_environment: bool = False  # no variable of the host but those that are named
    own_terminal: bool = False  # the command cannot share the caller's
    warning: str = ""


_NOT_A_BOUNDARY: Final = (
    "--jail env is NOT a boundary: it only sets proxy variables, and a program that ignores them reaches everything; "
    "files are not confined at all"
)
# In the order in which they are tried.
BODIES: Final = {
    body.kind: body
    for body in (
        Body("netns", "linux", Hides.BY_MOUNTS, by_itself=True, hides_sockets=True, nests=True),
        Body("nft", "linux", Hides.BY_MOUNTS, by_itself=True, hides_sockets=True, needs_root=True),
        Body("seatbelt", "darwin", Hides.BY_PATH, by_itself=True, hides_sockets=True),
        Body("container", "linux", Hides.BY_IMAGE, hides_sockets=True, own_environment=True, own_terminal=True),
        Body("vm", "linux", Hides.BY_MOUNTS, hides_sockets=True, own_kernel=True),
        Body("env", needs_variables=True, warning=_NOT_A_BOUNDARY),
    )
}
AUTO: Final = "auto"
# For those who asked for a jail of another system.
_SYSTEMS: Final = {
    "linux": ("Linux", "--jail env sets proxy variables, which is not a boundary"),
    "darwin": ("macOS", "--jail netns, or leave --jail out"),
}


class _Module(Protocol):
    def open_jail(self) -> Jail: ...
    def examine(self) -> Examination: ...


def choose(kind: str) -> list[Body]:
    """Those to try for what was asked for, one after the other. Raises JailError if none is of this system."""
    if kind != AUTO:
        wanted = [BODIES[kind]]
    else:
        may = [body for body in BODIES.values() if body.by_itself and (not body.needs_root or os.geteuid() == 0)]
        wanted = [body for body in may if sys.platform == body.system] or may[:1]
    for body in wanted:
        if body.system not in ("", sys.platform):
            system, fix = _SYSTEMS[body.system]
            raise JailError(f"the {body.kind} jail needs {system}", detail=f"this is {sys.platform}", fix=fix)
    return wanted


def open_jail(body: Body) -> Jail:
    return _load(body).open_jail()


def examine(kind: str) -> Examination:
    """Find out by building one and starting nothing in it."""
    try:
        (body,) = choose(kind)
        return _load(body).examine()
    except JailError as error:
        return Examination(False, f"{error.public}: {error.detail}" if error.detail else error.public, error.fix)


def _load(body: Body) -> _Module:
    return cast(_Module, import_module(f"exeat.jail.bodies.{body.kind}"))
