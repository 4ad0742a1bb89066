"""exeat's files for a container if exeat is in a container itself: the engine sees another machine's files.

What is shared with that machine has another path there. What is not is copied into a volume of the run, through a
container that is made for this and never started. The engine mounts from the volume's folder by path, file by file.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Iterable
from typing import Any, Final

from exeat.engine.client import Engine
from exeat.engine.errors import EngineError, NotFoundError
from exeat.engine.owner import labels
from exeat.errors import ConfigError
from exeat.jail.container.options import Mount, as_body
from exeat.jail.container.own_container import OwnContainer

_POINT: Final = "/exeat"
_MAX_COPIED: Final = 16 << 20


class Stage:
    """`put` what is to be mounted, then `as_body`; `close` at any time."""

    def __init__(self, engine: Engine, own: OwnContainer, image: str) -> None:
        self._engine = engine
        self._own = own
        self._image = image
        self._volume = ""
        self._folder = ""  # of the volume, on the engine's machine
        self._names: dict[str, str] = {}  # what was copied: our path, its name in the volume

    def put(self, mounts: Iterable[Mount]) -> None:
        """Raises ConfigError for what is not available there."""
        for path, _, read_only in mounts:
            if path not in self._names and not self._own.translate(path, read_only=read_only):
                _refuse_copy(path, read_only)
                self._names[path] = str(len(self._names))
        self._copy(self._as_tar())

    def as_body(self, mount: Mount) -> dict[str, Any]:
        """For the engine, with the path on its machine."""
        if name := self._names.get(mount.source):
            # Docker refuses the usual propagation for what is in its own folders.
            return as_body(Mount(f"{self._folder}/{name}", mount.target, True), "rslave")
        there = self._own.translate(mount.source, read_only=mount.read_only)
        return as_body(Mount(there, mount.target, mount.read_only))

    def _as_tar(self) -> bytes:
        import tarfile  # 5 ms, for runs inside containers

        whole = io.BytesIO()
        with tarfile.open(fileobj=whole, mode="w") as tar:
            for path, name in self._names.items():
                item = tarfile.TarInfo(name)
                found = os.stat(path)
                item.mode = stat.S_IMODE(found.st_mode)
                item.uid, item.gid = found.st_uid, found.st_gid
                if stat.S_ISDIR(found.st_mode):
                    item.type = tarfile.DIRTYPE
                    tar.addfile(item)
                    continue
                content = b""
                if found.st_size:  # what covers a hidden file is empty, and no one may read it
                    with open(path, "rb") as file:
                        content = file.read(_MAX_COPIED + 1)
                item.size = len(content)
                tar.addfile(item, io.BytesIO(content))
        return whole.getvalue()

    def _copy(self, tar: bytes) -> None:
        engine = self._engine
        made = engine.call("POST", "/volumes/create", body={"Labels": labels("volume", inside=self._own.id)})
        self._volume, self._folder = made["Name"], made["Mountpoint"]
        body = {
            "Image": self._image,
            "Entrypoint": ["/never-started"],
            "Labels": labels("helper", inside=self._own.id),
            "HostConfig": {
                "NetworkMode": "none",
                "Mounts": [{"Type": "volume", "Source": self._volume, "Target": _POINT}],
            },
        }
        porter = engine.call("POST", "/containers/create", body=body)["Id"]
        try:
            headers = {"Content-Type": "application/x-tar"}
            engine.call("PUT", f"/containers/{porter}/archive", query={"path": _POINT}, data=tar, headers=headers)
        finally:
            # With the volumes that the image asks for. Ours has a name here, and stays.
            engine.call("DELETE", f"/containers/{porter}", query={"force": True, "v": True})

    def close(self) -> None:
        """To be called when no container uses it any more."""
        if self._volume:
            try:
                self._engine.call("DELETE", f"/volumes/{self._volume}")
            except (NotFoundError, EngineError):
                pass  # the next run tries again
            self._volume = ""


def _refuse_copy(path: str, read_only: bool) -> None:
    found = os.stat(path)
    is_small = stat.S_ISREG(found.st_mode) and found.st_size <= _MAX_COPIED
    is_empty = stat.S_ISDIR(found.st_mode) and not os.listdir(path)
    if not read_only or not (is_small or is_empty):
        raise ConfigError(
            "is in this container only, so the engine cannot mount it in another one",
            where=path,
            expected=f"this container started with -v DIRECTORY:{path}, or a folder that it shares with its machine",
        )
