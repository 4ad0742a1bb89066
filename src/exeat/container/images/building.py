"""One build at an engine: its log, its failure as one sentence, and the removal of everything but the image."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from exeat.container.images.halt import Halt
from exeat.container.images.image import BUILD, BuildOrder, Built
from exeat.container.images.left_over import remove_build_steps
from exeat.container.images.package_index import without_passwords
from exeat.engine.client import Engine
from exeat.engine.errors import BuildError, EngineError, NotFoundError
from exeat.errors import ConfigError
from exeat.paths import printable
from exeat.sandbox.home import open_home

_LOCK: Final = "images.lock"
_AGAIN_S: Final = 0.1
_MAX_LOG: Final = 1 << 20
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")  # Docker marks what a step writes to its stderr
_NO_SPACE: Final = ("no space left on device", "disk quota exceeded")
_NO_PYTHON: Final = ('exec: "python3"', r"exec: \"python3\"", "executable file `python3` not found")  # runc, crun


Say = Callable[[str], None]  # one line for a person who waits


def ensure_built(
    engine: Engine, name: str, tag: str, order: Callable[[str], BuildOrder], network: str, say: Say, halt: Halt
) -> Built:
    """The image, built if it is not there: `order` is asked only then, with a mark of the build. `name`: for people."""
    if digest := _find(engine, tag):
        return Built(tag, digest)
    build = secrets.token_hex(8)
    wanted = order(build)
    assert wanted.tag == tag
    with _one_at_a_time(say, halt):
        if digest := _find(engine, tag):  # another process has built it meanwhile
            return Built(tag, digest)
        remove_build_steps(engine)
        try:
            digest = _build(engine, name, wanted, network, say, halt)
        finally:
            with contextlib.suppress(EngineError):
                remove_build_steps(engine, lambda found: found.get(BUILD) == build)
    return Built(tag, digest)


def _build(engine: Engine, name: str, order: BuildOrder, network: str, say: Say, halt: Halt) -> str:
    say(f"building {order.tag}")
    query = {
        "t": order.tag,
        "rm": True,
        "forcerm": True,
        "nocache": True,  # the tag is the cache; steps of another build may be removed under ours
        "layers": False,  # Podman keeps no images between the steps then
        "networkmode": network if order.needs_network else "none",
    }
    log = _Log(say)
    headers = {"Content-Type": "application/x-tar"}
    try:
        with halt.watching() as watch:
            for event in engine.stream(
                "POST", "/build", query=query, data=order.context(), headers=headers, opened=watch
            ):
                log.add(event)
    except EngineError as error:
        if not error.status:
            raise
        log.problem = log.problem or error.public  # it refused the order itself
    digest = "" if log.problem else _find(engine, order.tag)
    if not digest:
        raise _failure(engine, name, log)
    return digest


def _find(engine: Engine, tag: str) -> str:
    """The digest of the image; "" if it is not there."""
    try:
        return str(engine.call("GET", f"/images/{tag}/json")["Id"])
    except NotFoundError:
        return ""


def _shown(text: str) -> str:
    """Packages print what they like while they are installed, and a person reads it at a terminal."""
    plain = _COLOURS.sub("", without_passwords(text))
    return "\n".join(printable(line.expandtabs()) for line in plain.splitlines())


class _Log:
    """What a build prints, bounded, without passwords."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._lines: list[str] = []
        self._size = 0
        self.problem = ""

    def add(self, event: Mapping[str, Any]) -> None:
        if problem := event.get("error"):
            self.problem = _shown(str(problem).strip())
        for line in str(event.get("stream") or event.get("error") or event.get("status") or "").splitlines():
            if shown := _shown(line.rstrip()):
                self._say(shown)
                self._lines.append(shown)
                self._size += len(shown) + 1
        while self._size > _MAX_LOG:
            self._size -= len(self._lines.pop(0)) + 1

    def text(self) -> str:
        return "\n".join(self._lines)


def _failure(engine: Engine, name: str, log: _Log) -> BuildError:
    text = log.text()
    everything = f"{text}\n{log.problem}".lower()
    own = [line.partition("exeat: ")[2] for line in text.splitlines() if line.startswith("exeat: ")]
    if any(sign in everything for sign in _NO_SPACE):
        why = (
            f"the engine's disk is full; `{engine.kind} system df` shows by what, `{engine.kind} system prune` frees it"
        )
    elif any(sign in everything for sign in _NO_PYTHON):
        why = "its base image has no python3"
    elif own:
        why = "; ".join(own)
    else:
        why = log.problem or "the engine made no image, and gave no reason"
    return BuildError(f"the image of the sandbox {name!r} could not be built: {why}", log=text, detail=log.problem)


@contextlib.contextmanager
def _one_at_a_time(say: Say, halt: Halt) -> Iterator[None]:
    """Among the processes of this user here. Elsewhere two may build the same image: the later one has the tag."""
    descriptor = _open_lock()
    if descriptor is None:
        yield
        return
    try:
        has_said = False
        while not _take(descriptor):
            if not has_said:
                say("another process builds an image: waiting for it")
                has_said = True
            halt.check(_AGAIN_S)
        yield
    finally:
        os.close(descriptor)


def _open_lock() -> int | None:
    """None where nothing can be written: looking again before the build has to do there."""
    try:
        home = open_home(create=True)
    except (ConfigError, OSError):
        return None
    if home is None:
        return None
    try:
        return os.open(_LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=home)
    except OSError:
        return None
    finally:
        os.close(home)


def _take(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
