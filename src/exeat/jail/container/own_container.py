"""The container that exeat itself runs in, if the engine knows it: its paths as seen from the engine's machine."""

from __future__ import annotations

import os
import re
from typing import Any, Final

from exeat.engine.client import Engine
from exeat.engine.errors import NotFoundError
from exeat.errors import ConfigError
from exeat.paths import is_below
from exeat.values import Value

# Engines put their own hosts and resolv.conf into a container, from a folder that has its id.
_ID: Final = re.compile(r"/(?:containers|overlay-containers)/([0-9a-f]{64})/")
_BY_ENGINE: Final = ("/etc/hosts", "/etc/hostname", "/etc/resolv.conf")
_GROUP: Final = re.compile(r"[/-]([0-9a-f]{64})(?:\.scope)?$")


class Shared(Value):
    """A mount of our container: where it is here, and on the engine's machine."""

    here: str
    there: str
    is_writable: bool


class OwnContainer(Value):
    id: str
    shared: tuple[Shared, ...]

    def find(self, path: str) -> Shared | None:
        """The mount that a path of ours is in: the innermost."""
        within = [each for each in self.shared if is_below(path, each.here)]
        return max(within, key=lambda each: len(each.here), default=None)

    def translate(self, path: str, *, read_only: bool) -> str:
        """The path on the engine's machine; "" if it is in this container only. Raises ConfigError.

        What this container may not write, no other container may by its help.
        """
        shared = self.find(path)
        if shared is None:
            return ""
        if not read_only and not shared.is_writable:
            raise ConfigError(
                f"{path} is read-only in this container, so the command cannot write to it either",
                where=shared.here,
                expected=f"this container started with -v {shared.there}:{shared.here}",
            )
        return os.path.normpath(f"{shared.there}/{path[len(shared.here) :]}")


def find_own_container(engine: Engine) -> OwnContainer | None:
    """None: exeat is not in a container of this engine."""
    for each in _candidates():
        try:
            found = engine.call("GET", f"/containers/{each}/json")
        except NotFoundError:
            continue
        if str(found["Id"]).startswith(each):
            return OwnContainer(found["Id"], tuple(_shared(found)))
    return None


def _shared(found: dict[str, Any]) -> list[Shared]:
    mounts = found.get("Mounts") or ()
    return [
        Shared(os.path.normpath(each["Destination"]), each["Source"], bool(each.get("RW")))
        for each in mounts
        if each.get("Type") in ("bind", "volume") and each.get("Source")
    ]


def _candidates() -> list[str]:
    """Ids that may be ours, the likeliest first. A hostname can be anything, so it counts only if it looks like one."""
    mounts = (line.split(" ", 5) for line in _lines("/proc/self/mountinfo"))
    found = [match.group(1) for each in mounts if each[4] in _BY_ENGINE and (match := _ID.search(each[3]))]
    found += [match.group(1) for line in _lines("/proc/self/cgroup") if (match := _GROUP.search(line))]
    if re.fullmatch(r"[0-9a-f]{12}", os.uname().nodename):
        found.append(os.uname().nodename)
    return list(dict.fromkeys(found))


def _lines(path: str) -> list[str]:
    try:
        with open(path, errors="replace") as file:
            return file.read().splitlines()
    except OSError:
        return []
