"""Which image a container is made of, and getting it."""

from __future__ import annotations

import os
import string
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from exeat.engine.client import Engine
from exeat.engine.errors import EngineError, NotFoundError
from exeat.errors import JailError
from exeat.jail.container.options import Mount
from exeat.paths import is_in
from exeat.values import Value

VARIABLE: Final = "EXEAT_IMAGE"
_IN_NAMES: Final = frozenset(f"{string.ascii_letters}{string.digits}._-/:@")
_SHOWN_EVERY: Final = 20  # lines of progress, where it cannot be written over


class Image(Value):
    """`variables`: its own, which the container has unless others are set."""

    id: str
    name: str
    variables: dict[str, str]
    user: str = ""
    volumes: tuple[str, ...] = ()


def default_image() -> str:
    """What EXEAT_IMAGE names, else a slim Python like the one that runs exeat."""
    return os.environ.get(VARIABLE) or f"python:{sys.version_info.major}.{sys.version_info.minor}-slim"


def find_image(engine: Engine, name: str = "", show: Callable[[str], None] | None = None) -> Image:
    """Pulled by the engine if it is not there; `show` is told how far that is. Raises EngineError."""
    name = name or default_image()
    check_name(name)
    try:
        found = engine.call("GET", f"/images/{name}/json")
    except NotFoundError:
        pull(engine, name, show)
        found = engine.call("GET", f"/images/{name}/json")
    return _as_image(name, found)


def check_name(name: str) -> None:
    """It becomes part of a path at the engine, which must be that of an image. Raises EngineError."""
    parts = name.split("/")
    if not _IN_NAMES.issuperset(name) or not all(part.strip(".") for part in parts) or name != name.lstrip("-:@"):
        raise EngineError(
            f"{name!r} cannot be the name of an image",
            fix=f"a name such as python:3.12-slim: --container IMAGE, or {VARIABLE}",
        )


def _as_image(name: str, found: dict[str, Any]) -> Image:
    config = found.get("Config") or {}
    pairs = (each.partition("=") for each in config.get("Env") or ())
    variables = {key: value for key, _, value in pairs}
    return Image(found["Id"], name, variables, config.get("User") or "", tuple(config.get("Volumes") or ()))


def hold_volumes(host: dict[str, Any], volumes: Iterable[str], mounts: Sequence[Mount]) -> None:
    """Those that an image asks for are to be in memory. Raises JailError for one in a folder of the machine.

    An engine would make each on the machine's disk, writable and without a limit. It cannot be told to make none.
    """
    taken = [mount.target for mount in mounts]
    in_memory = host["Tmpfs"]["/tmp"]  # noqa: S108 - in the container
    for text in volumes:
        path = "/" + os.path.normpath(text).strip("/")
        if path in taken or path in host["Tmpfs"]:
            continue
        if is_in(path, taken):
            raise JailError(
                f"the image has a volume at {path}, which the engine would make in a folder of this machine",
                fix="another image, or the folder at another path: --mount SRC:DST",
            )
        host["Tmpfs"][path] = in_memory


def pull(engine: Engine, name: str, show: Callable[[str], None] | None = None) -> None:
    """Raises EngineError: there is no such image, or no way to where it is."""
    show = show or (lambda text: None)
    show(f"pulling {name} ...")
    tag = name if "@" in name or ":" in name.rpartition("/")[2] else f"{name}:latest"
    parts: dict[str, tuple[int, int]] = {}
    lines = 0
    try:
        for line in engine.stream("POST", "/images/create", query={"fromImage": tag}):
            if "error" in line:
                raise EngineError(str(line["error"]))
            detail = line.get("progressDetail") or {}
            if line.get("id") and detail.get("total"):
                parts[line["id"]] = int(detail.get("current") or 0), int(detail["total"])
                lines += 1
                if lines % _SHOWN_EVERY == 0:
                    done, total = (sum(column) for column in zip(*parts.values(), strict=True))
                    show(f"pulling {name}: {done >> 20} of {total >> 20} MB")
    except EngineError as error:
        raise EngineError(
            f"the image {name} is not here and could not be pulled",
            detail=error.public.removeprefix("the engine refused: "),
            fix=f"{engine.kind} pull {name}; or name another image: --container IMAGE, or {VARIABLE}",
            status=error.status,
        ) from None
    show(f"pulled {name}")
