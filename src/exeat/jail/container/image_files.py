"""Files of an image that exeat replaces in a container: its accounts, and its certificate stores.

Found through the engine, in a container that is never started, and remembered for the image: it does not change.
"""

from __future__ import annotations

import base64
import io
import json
import os
import tarfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from exeat.engine.client import Engine
from exeat.engine.errors import EngineError, NotFoundError
from exeat.engine.owner import labels
from exeat.jail.container.accounts import Accounts
from exeat.jail.container.images import Image
from exeat.trust import places
from exeat.values import Value

_VERSION: Final = 1  # of what is remembered
_MOST_IMAGES: Final = 32
_MOST_BYTES: Final = 4 << 20
_MOST_LINKS: Final = 16
_FOLDER, _LINK = 1 << 31, 1 << 27  # in the mode, as Go has it
_PYTHONS: Final = ("python3", *(f"python3.{minor}" for minor in range(8, 17)))


class Stores(Value):
    """Where an image's programs look for whom to trust: full paths in it, without links."""

    bundles: tuple[str, ...] = ()
    hashed: tuple[str, ...] = ()
    anchors: tuple[str, ...] = ()
    java: tuple[str, ...] = ()
    roots: bytes = b""  # what the first bundle has in it


class ImageFiles:
    """Of one image. `memory` is a folder of exeat's own, or "" to remember nothing. Raises EngineError."""

    def __init__(self, engine: Engine, image: Image, memory: str) -> None:
        self._engine, self._image = engine, image
        self._path = f"{memory}/{image.id.rpartition(':')[2]}.json" if memory else ""

    def accounts(self) -> Accounts:
        found = self._remembered("accounts", lambda box: [box.text("/etc/passwd"), box.text("/etc/group")])
        return Accounts(*map(_encoded, found))

    def stores(self) -> Stores:
        *lists, roots = self._remembered("stores", lambda box: _find_stores(box, self._image.variables))
        bundles, hashed, anchors, java = map(tuple, lists)
        return Stores(bundles, hashed, anchors, java, _encoded(roots))

    def _remembered(self, what: str, find: Callable[[_Unstarted], list[Any]]) -> list[Any]:
        known = _read(self._path)
        if what not in known:
            with _unstarted(self._engine, self._image.id) as box:
                known[what] = find(box)
            _write(self._path, known)
        found: list[Any] = known[what]
        return found


class _Unstarted:
    """A container to look into. What it says is the image's, and may be anything: nothing here is acted upon."""

    def __init__(self, engine: Engine, container: str) -> None:
        self._engine = engine
        self._archive = f"/containers/{container}/archive"
        self._real: dict[str, str] = {"/": "/"}
        self._modes: dict[str, int] = {"/": _FOLDER}

    def real(self, path: str) -> str:
        """The path without links; "" if nothing is there."""
        return self._follow(path, _MOST_LINKS)

    def _follow(self, path: str, left: int) -> str:
        path = "/" + os.path.normpath(path).strip("/")
        if path not in self._real:
            above, name = os.path.split(path)
            folder = self._follow(above, left)
            self._real[path] = self._look(folder, name, left) if folder and left else ""
        return self._real[path]

    def _look(self, folder: str, name: str, left: int) -> str:
        here = f"{folder.rstrip('/')}/{name}"
        try:
            answer = self._engine.request("HEAD", self._archive, query={"path": here})
        except NotFoundError:
            return ""
        answer.close()
        found = json.loads(base64.b64decode(answer.headers.get("x-docker-container-path-stat", "")) or b"{}")
        self._modes[here] = mode = int(found.get("mode", 0))
        return self._follow(os.path.join(folder, found["linkTarget"]), left - 1) if mode & _LINK else here

    def files(self, paths: Iterable[str]) -> list[str]:
        """Those that are there and no folders, each once."""
        return [path for path in dict.fromkeys(map(self.real, paths)) if path and not self._modes[path] & _FOLDER]

    def folders(self, paths: Iterable[str]) -> list[str]:
        return [path for path in dict.fromkeys(map(self.real, paths)) if path and self._modes[path] & _FOLDER]

    def text(self, path: str) -> str:
        """What is in a file; "" if it is not there, or is too large."""
        for real in self.files([path]):
            packed = self._engine.raw("GET", self._archive, query={"path": real})
            with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
                for item in archive:
                    if item.isreg() and item.size <= _MOST_BYTES and (file := archive.extractfile(item)):
                        return file.read().decode("utf-8", "surrogateescape")
        return ""


@contextmanager
def _unstarted(engine: Engine, image: str) -> Iterator[_Unstarted]:
    body = {"Image": image, "Cmd": ["-"], "Labels": labels("run"), "HostConfig": {"NetworkMode": "none"}}
    container = engine.call("POST", "/containers/create", body=body)["Id"]
    try:
        yield _Unstarted(engine, container)
    finally:
        with suppress(EngineError):  # the next run looks for it again
            engine.call("DELETE", f"/containers/{container}", query={"force": True, "v": True})


def _find_stores(box: _Unstarted, variables: dict[str, str]) -> list[Any]:
    """In the order of `Stores`."""
    system = box.files(places.BUNDLES)
    homes = [variables["JAVA_HOME"]] if variables.get("JAVA_HOME", "").startswith("/") else []
    java = (*places.JAVA_STORES, *(f"{home}/{each}" for home in homes for each in places.IN_JAVA))
    return [
        box.files((*system, *_bundles_of_python(box, variables))),
        box.folders(places.HASHED_FOLDERS),
        box.folders(places.ANCHOR_FOLDERS),
        box.files(java),
        box.text(system[0]) if system else "",
    ]


def _bundles_of_python(box: _Unstarted, variables: dict[str, str]) -> Iterator[str]:
    """What packages bring along, in every Python that the image's PATH leads to."""
    programs = [folder for folder in variables.get("PATH", "/usr/local/bin:/usr/bin").split(":") if folder[:1] == "/"]
    named = [variables.get(name, "") for name in ("VIRTUAL_ENV", "CONDA_PREFIX")]
    prefixes = dict.fromkeys(filter(None, (*named, *map(os.path.dirname, programs))))
    for prefix in prefixes:
        yield from (f"{prefix}/{each}" for each in places.IN_CONDA)
        for python in box.folders(f"{prefix}/lib/{name}" for name in _PYTHONS):
            for packages in box.folders((f"{python}/site-packages", f"{python}/dist-packages")):
                yield from (f"{packages}/{each}" for each in places.IN_PACKAGES)


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _read(path: str) -> dict[str, Any]:
    with suppress(OSError, ValueError), open(path, encoding="utf-8", errors="surrogateescape") as file:
        known = json.load(file)
        if known.get("version") == _VERSION:
            return dict(known)
    return {"version": _VERSION}


def _write(path: str, known: dict[str, Any]) -> None:
    """In one step. If that cannot be done, the next run looks again."""
    if not path:
        return
    folder, new = os.path.dirname(path), f"{path}.{os.getpid()}"
    with suppress(OSError):
        os.makedirs(folder, 0o700, exist_ok=True)
        with open(new, "x", encoding="utf-8", errors="surrogateescape") as file:
            json.dump(known, file)
        os.replace(new, path)
        by_age = sorted(os.scandir(folder), key=lambda entry: entry.stat().st_mtime_ns, reverse=True)
        for entry in by_age[_MOST_IMAGES:]:
            os.unlink(entry.path)
