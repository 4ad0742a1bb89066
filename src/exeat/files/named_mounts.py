"""Checks `--mount SRC:DST[:ro]`: the source exists, may be shared, and has a place inside."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from typing import Final

from exeat.errors import ConfigError
from exeat.files.keys.hidden import HiddenPath
from exeat.files.named_paths import refuse_hidden
from exeat.jail.container.options import HOME, ROOT_HOME, Mount
from exeat.paths import full_path, is_below, is_in, is_inside, look

_FORM: Final = "SRC:DST or SRC:DST:ro, both full paths"
_KERNELS: Final = ("/proc", "/sys", "/dev")
# Where a container has something of its own. A folder above one of these would be mounted over it, or changed by it.
_FOR_ANY: Final = ("/tmp", HOME, ROOT_HOME)  # noqa: S108 - in the container
_OWN: Final = ("/run/exeat", "/etc/passwd", *_KERNELS)
_GUESTS_OWN: Final = ("/run/exeat", "/etc/resolv.conf", *_KERNELS)  # of a virtual machine


def parse_mount(text: str) -> Mount:
    """As it was typed, for a container. Raises ConfigError."""
    return _parse(text, "container", _OWN, _FOR_ANY)


def parse_guest_mount(text: str) -> Mount:
    """As it was typed, for a virtual machine with files of its own. Raises ConfigError."""
    return _parse(text, "guest", _GUESTS_OWN, ())


def _parse(text: str, inside: str, own: tuple[str, ...], above: tuple[str, ...]) -> Mount:
    """`own`: nothing is mounted there, above or below. `above`: not above these."""
    where = f"--mount {text}"
    source, _, rest = text.partition(":")
    target, colon, mode = rest.partition(":")
    if not source or not target or "\0" in text or (colon and mode not in ("ro", "rw")):
        raise ConfigError("is not a mount", where=where, expected=_FORM)
    if not target.startswith("/"):
        raise ConfigError(f"{target} is not a full path in the {inside}", where=where, expected=_FORM)
    target = "/" + os.path.normpath(target).strip("/")
    for path in (*own, *above):
        if is_below(path, target) or (path in own and is_below(target, path)):
            raise ConfigError(
                f"{path} is the {inside}'s own", where=where, expected=f"another place in the {inside}, such as /mnt"
            )
    return Mount(source, target, mode == "ro")


def check_mounts(
    mounts: Iterable[Mount], hidden: Sequence[HiddenPath], *, home: str, state: str, engines: Iterable[str]
) -> list[Mount]:
    """The same with sources that are there, without links. `engines` are sockets of engines. Raises ConfigError."""
    ways_out = [os.path.realpath(path) for path in engines]
    return [_check(mount, list(hidden), home, state, ways_out) for mount in mounts]


def _check(mount: Mount, hidden: list[HiddenPath], home: str, state: str, ways_out: list[str]) -> Mount:
    where = f"--mount {mount.source}:{mount.target}"
    source = os.path.realpath(full_path(mount.source, home))
    found = look(source)
    if found is None:
        raise ConfigError(f"{source} does not exist, or may not be looked at", where=where, expected="a file or folder")
    refuse_way_out(source, where, ways_out)
    if is_in(source, _KERNELS) or source == "/":
        raise ConfigError(f"{source} is the machine itself, not files of it", where=where, expected="another folder")
    if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
        raise ConfigError("is neither a file nor a folder", where=where, expected="--unix for a socket")
    if state and is_below(source, state):
        raise ConfigError("is exeat's own: its contents control the command", where=where, expected="another path")
    refuse_hidden(source, where, hidden)
    return Mount(source, mount.target, mount.read_only)


def refuse_way_out(source: str, where: str, ways_out: Iterable[str]) -> None:
    """Who speaks to an engine can have any file and any network of the machine."""
    for socket in ways_out:
        if is_below(socket, source):
            what = "is the socket of an engine" if socket == source else f"has the socket of an engine in it ({socket})"
            raise ConfigError(f"{what}, through which the command could get out", where=where, expected="another path")


def refuse_missing_points(shares: Sequence[Mount]) -> None:
    """An engine makes what is missing to mount something on: on the machine, if it lies in another mount."""
    for outer in shares:
        for inner in shares:
            if is_inside(inner.target, outer.target):
                point = outer.source + inner.target[len(outer.target) :]
                if not os.path.lexists(point):
                    raise ConfigError(
                        f"would create {point} on this machine, as a place for {inner.target}",
                        where=f"--mount {outer.source}:{outer.target}",
                        expected="another place inside",
                    )
