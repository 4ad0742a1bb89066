"""A lock at an engine, without a file: it works between containers that share the engine's socket, too.

Docker may make two networks of one name if it is asked twice at once. It makes a volume only once: a
second request returns the existing one, with the labels of the first.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from exeat.engine.client import Engine
from exeat.engine.errors import EngineError, NotFoundError
from exeat.engine.owner import labels, remove_left_networks

_TOKEN: Final = "exeat.token"  # noqa: S105 - the name of a label
_AGAIN_S: Final = 0.05
_IN_BETWEEN: Final = "no such file or directory"


@contextmanager
def held(engine: Engine, name: str, wait_s: float = 60.0) -> Iterator[None]:
    """Hold the lock of this name. That of a process that is gone is taken over. Raises EngineError after `wait_s`."""
    path = f"exeat-lock-{name}"
    token = secrets.token_hex(16)
    marks = {**labels("volume"), _TOKEN: token}
    deadline = time.monotonic() + wait_s
    while _owner(engine, path, marks) != token:
        if time.monotonic() > deadline:
            raise EngineError(
                f"another process has been making {name} for {wait_s:.0f} s",
                fix=f"{engine.kind} volume rm {path}, if that process is gone",
            )
        remove_left_networks(engine)
        time.sleep(_AGAIN_S)
    try:
        yield
    finally:
        _give_back(engine, path, token)


def _give_back(engine: Engine, path: str, token: str) -> None:
    """Podman forgets a volume first and removes its folder then, which fails if another has begun to use it."""
    try:
        engine.raw("DELETE", f"/volumes/{path}")
    except EngineError:
        try:
            found = engine.call("GET", f"/volumes/{path}").get("Labels") or {}
        except NotFoundError:
            return
        if found.get(_TOKEN) == token:
            raise


def _owner(engine: Engine, path: str, marks: dict[str, str]) -> str:
    try:
        return volume_labels(engine, path, marks).get(_TOKEN, "")
    except NotFoundError:  # given back in between
        return ""
    except EngineError as error:
        if _IN_BETWEEN not in error.public:
            raise
        return ""  # Podman has forgotten it, and removes its folder while it makes another there


def volume_labels(engine: Engine, name: str, marks: dict[str, str]) -> dict[str, str]:
    """Of a volume, which is made with these if it is not there. Podman refuses the second of two who ask at once."""
    try:
        engine.call("POST", "/volumes/create", body={"Name": name, "Labels": marks})
    except EngineError as error:
        if "already exists" not in error.public:
            raise
    return dict(engine.call("GET", f"/volumes/{name}").get("Labels") or {})
