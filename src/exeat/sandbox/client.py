"""Speak to the commands that run in a sandbox: plain blocking calls, for a command line and for threads."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from exeat.errors import ConfigError, ExeatError
from exeat.sandbox.control import ANSWER, MAX_MESSAGE, PENDING, RELOAD, STATUS, reachable_path, socket_number
from exeat.sandbox.folder import open_sandbox

if TYPE_CHECKING:
    from exeat.sandbox.folder import SandboxFolder

_PATIENCE_S = 5.0


class Told(NamedTuple):
    """What became of a change: how many running commands took it, what it closed, what to know, who did not take it."""

    taken: int
    closed: int
    notes: tuple[str, ...]
    failed: tuple[str, ...]


class Running(NamedTuple):
    """A command that runs in a sandbox. `other_rules` are those that are not in the sandbox's list."""

    pid: int
    command: str
    started: str
    jail: str
    mode: str
    open_connections: int
    rules: int
    other_rules: tuple[str, ...]
    allowed: int
    denied: int
    pending: int


# One that hangs, or is of another version.
_UNCLEAR = Running(0, "a command that does not answer", "", "", "", 0, 0, (), 0, 0, 0)


class Pending(NamedTuple):
    """A question that waits for an answer. `id` is good for `answer`, among all commands of the sandbox."""

    id: str
    host: str
    port: int
    rule: str
    waiting: int
    left_s: float
    inside: bool
    command: str
    program: str = ""  # of the command, what the one that asks calls itself


def tell(name: str) -> Told:
    """Have every running command of a sandbox read its list anew."""
    taken = closed = 0
    notes: dict[str, None] = {}
    failed = []
    for _, said in _ask_all(name, {"op": RELOAD}):
        if said.get("ok") is True:
            taken += 1
            closed += int(said.get("closed", 0))
            notes.update(dict.fromkeys(map(str, said.get("notes", ()))))
        else:
            failed.append(str(said.get("error", "it did not answer")))
    return Told(taken, closed, tuple(notes), tuple(failed))


def running(name: str) -> list[Running]:
    """The commands that run in a sandbox now, also those that do not answer as they should."""
    return [_understand(said) for _, said in _ask_all(name, {"op": STATUS})]


def _understand(said: dict[str, Any]) -> Running:
    try:
        if said["ok"] is not True:
            return _UNCLEAR
        return Running(
            int(said["pid"]),
            str(said["command"]),
            str(said["started"]),
            str(said["jail"]),
            str(said["mode"]),
            int(said["open_connections"]),
            int(said["rules"]),
            tuple(map(str, said["other_rules"])),
            int(said["allowed"]),
            int(said["denied"]),
            int(said["pending"]),
        )
    except (KeyError, TypeError, ValueError):
        return _UNCLEAR


def pending(name: str) -> list[Pending]:
    """The questions that wait for an answer, the oldest of each command first."""
    found = []
    for number, said in _ask_all(name, {"op": PENDING}):
        try:
            found += [
                Pending(
                    f"{number}-{said['run']}-{int(each['number'])}",
                    str(each["host"]),
                    int(each["port"]),
                    str(each["rule"]),
                    int(each["waiting"]),
                    float(each["left_s"]),
                    each["inside"] is True,
                    str(said["command"]),
                    str(each.get("program", "")),
                )
                for each in said["questions"]
            ]
        except (KeyError, TypeError, ValueError):
            continue  # it does not ask, does not answer, or is of another version
    return found


def answer(name: str, id: str, *, allow: bool, always: bool) -> str:  # noqa: A002 - it is one
    """Answer a question. Gives a sentence on what came of it. Raises ExeatError if there is no such question."""
    which, _, rest = id.partition("-")
    run, _, number = rest.rpartition("-")
    request: dict[str, object] = {"op": ANSWER, "allow": allow, "always": always, "run": run}
    if which.isascii() and which.isdigit() and number.isascii() and number.isdigit():
        request["number"] = int(number)
        for _, said in _ask_all(name, request, only=int(which)):
            if said.get("ok") is True:
                return str(said["said"])
            raise ExeatError(str(said.get("error", "it did not answer")))
    raise ExeatError("there is no such question any more")


def _ask_all(name: str, request: dict[str, object], *, only: int | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each command's number and answer. None are running in a sandbox that does not exist."""
    try:
        folder = open_sandbox(name)
    except ConfigError:
        from exeat.sandbox.folder import list_sandboxes  # noqa: PLC0415

        if name in list_sandboxes():
            raise
        return
    with folder:
        numbers = sorted(
            number
            for each in os.listdir(folder.descriptor)
            if (number := socket_number(each)) is not None and only in (None, number)
        )
        for number in numbers:
            said = _ask(folder, number, request)
            if said is not None:
                yield number, said


def _remove_stale(folder: SandboxFolder, name: str) -> None:
    """A socket that was left by one that was killed. Under the lock: one that is just being made refuses as well."""
    from exeat.sandbox.files import locked  # noqa: PLC0415 - rare
    from exeat.sandbox.folder import LOCK  # noqa: PLC0415

    with (
        suppress(OSError, ExeatError),
        locked(folder.descriptor, LOCK, f"{folder.path}/{LOCK}"),
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as again,
    ):
        again.settimeout(_PATIENCE_S)
        try:
            again.connect(reachable_path(folder.descriptor, folder.path, name))
        except ConnectionRefusedError:
            os.unlink(name, dir_fd=folder.descriptor)


def _ask(folder: SandboxFolder, number: int, request: dict[str, object]) -> dict[str, Any] | None:
    """One command's answer; None if there is nobody at the socket."""
    import json  # noqa: PLC0415 - not before there is somebody to ask

    from exeat.sandbox.control import socket_name  # noqa: PLC0415

    name = socket_name(number)
    try:
        found = os.stat(name, dir_fd=folder.descriptor, follow_symlinks=False)
        if not stat.S_ISSOCK(found.st_mode) or found.st_uid != os.geteuid():
            return None
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_PATIENCE_S)
            try:
                connection.connect(reachable_path(folder.descriptor, folder.path, name))
            except ConnectionRefusedError:
                _remove_stale(folder, name)
                return None
            connection.sendall(json.dumps(request).encode() + b"\n")
            data = bytearray()
            while not data.endswith(b"\n") and len(data) <= MAX_MESSAGE:
                more = connection.recv(65_536)
                if not more and data:
                    raise OSError(errno.ECONNRESET, "it broke off")
                if not more:
                    return None  # it has just ended
                data += more
        said = json.loads(data)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        return {"ok": False, "error": f"the command at {name} does not answer: {error}"}
    return (
        said
        if isinstance(said, dict)
        else {"ok": False, "error": f"the command at {name} does not answer as it should"}
    )
