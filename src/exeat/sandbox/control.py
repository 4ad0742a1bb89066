"""The control socket of a running command: its name, its requests, and the client side.

One line of JSON each way, over a socket in the folder of the command's sandbox. Only its owner may enter that folder,
and no jail shows it. Several commands may run in one sandbox at the same time; each has a socket of its own. The calls
block: they are for a command line and for threads. `exeat.sandbox.server` is the other side.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final, NamedTuple

from exeat.errors import ConfigError, ExeatError
from exeat.policy.grammar import parse_rule
from exeat.policy.rule import Rule, Source
from exeat.sandbox.folder import SandboxFolder, list_sandboxes, open_sandbox

MAX_MESSAGE: Final = 64 * 1024 * 1024  # an answer may list all the rules of a command
MAX_SOCKETS: Final = 32

# What may be asked.
STATUS: Final = "status"
RELOAD: Final = "reload"
PENDING: Final = "pending"
ANSWER: Final = "answer"

_NAME: Final = re.compile(r"control(?:-([2-9]|[12][0-9]|3[0-2]))?\.sock")
_PATIENCE_S: Final = 5.0
_ASKS: Final = "ask"


def socket_name(number: int) -> str:
    return "control.sock" if number == 1 else f"control-{number}.sock"


def socket_number(name: str) -> int | None:
    """The number of a control socket, None for any other file."""
    found = _NAME.fullmatch(name)
    return None if found is None else int(found[1] or 1)


def reachable_path(folder: SandboxFolder, name: str) -> str:
    """A path to a socket that the kernel takes, however deep the folder lies: a socket's name has 107 bytes at most.

    Through the open folder where the system allows it, so that it is the folder that was checked.
    """
    if sys.platform == "linux":
        return f"/proc/self/fd/{folder.descriptor}/{name}"
    return os.path.join(folder.path, name)


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
_UNCLEAR: Final = Running(0, "a command that does not answer", "", "", "", 0, 0, (), 0, 0, 0)


class Pending(NamedTuple):
    """A question that waits for an answer. `id` identifies it among all commands of the sandbox."""

    id: str
    host: str
    port: int
    rule: str
    waiting: int
    left_s: float
    inside: bool
    command: str
    program: str = ""  # what the process that asks calls itself


class OtherRules(NamedTuple):
    """What running commands may reach next to the list of their sandbox, by options, files and answers.

    `asks`: one asks about what no rule lists, and the user may say yes. `learns`: one lets it through without asking.
    `problems`: what could not be understood, in sentences. It may allow anything.
    """

    rules: tuple[Rule, ...] = ()
    asks: bool = False
    learns: bool = False
    problems: tuple[str, ...] = ()

    @property
    def lets_through(self) -> bool:
        """Whether something may get through that no rule lists, without a yes."""
        return self.learns or bool(self.problems)

    @property
    def may_let_through(self) -> bool:
        """The same, or after a yes."""
        return self.lets_through or self.asks


def tell(name: str) -> Told:
    """Have every running command of a sandbox read its list again."""
    taken = closed = 0
    notes: dict[str, None] = {}
    failed = []
    for _, said in _ask_all(name, {"op": RELOAD}):
        if said.get("ok") is True:
            taken += 1
            closed += int(said.get("closed", 0))
            notes.update(dict.fromkeys(map(str, said.get("notes", ()))))
        else:
            failed.append(_error(said))
    return Told(taken, closed, tuple(notes), tuple(failed))


def running(name: str) -> list[Running]:
    """The commands that run in a sandbox now, also those that do not answer as they should."""
    return [_understand(said) for _, said in _ask_all(name, {"op": STATUS})]


def _understand(said: dict[str, Any]) -> Running:
    try:
        if said["ok"] is not True:
            return _UNCLEAR
        fields = {name: type(usual)(said[name]) for name, usual in _UNCLEAR._asdict().items()}
        return Running(**fields | {"other_rules": tuple(map(str, said["other_rules"]))})
    except (KeyError, TypeError, ValueError):
        return _UNCLEAR


def read_other_rules(name: str) -> OtherRules:
    """Ask the commands that run in a sandbox. One that is not understood is no reason to leave a list as it is."""
    found = running(name)
    rules, problems = [], []
    for text in sorted({text for each in found for text in each.other_rules}):
        try:
            rules.append(parse_rule(text, Source("a running command")))
        except ConfigError as error:
            problems.append(
                f"a running command has a rule that cannot be read here, and may still allow it: {error.public}"
            )
    if any(not each.pid for each in found):
        problems.append("a running command does not say what it allows, and may still allow it")
    modes = {each.mode for each in found if each.mode}
    return OtherRules(tuple(rules), _ASKS in modes, bool(modes - {_ASKS}), tuple(problems))


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
    """Answer a question. Returns a sentence on the result. Raises ExeatError if there is no such question."""
    if found := re.fullmatch(r"([0-9]{1,9})-(.*)-([0-9]{1,9})", id, re.DOTALL):
        which, run, number = int(found[1]), found[2], int(found[3])
        request = {"op": ANSWER, "allow": allow, "always": always, "run": run, "number": number}
        for _, said in _ask_all(name, request, only=which):
            if said.get("ok") is True:
                return str(said["said"])
            raise ExeatError(_error(said))
    raise ExeatError("this question is no longer open")


def _error(said: dict[str, Any]) -> str:
    return str(said.get("error", "a running command did not answer"))


def _ask_all(name: str, request: dict[str, object], *, only: int | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each command's number and answer. Nothing runs in a sandbox that does not exist."""
    try:
        folder = open_sandbox(name)
    except ConfigError:
        if name in list_sandboxes():
            raise
        return
    with folder:
        for number in sorted(filter(None, map(socket_number, os.listdir(folder.descriptor)))):
            if only in (None, number) and (said := _ask(folder, number, request)) is not None:
                yield number, said


def _ask(folder: SandboxFolder, number: int, request: dict[str, object]) -> dict[str, Any] | None:
    """One command's answer; None if nothing listens at the socket."""
    import json  # most often there is no command to ask

    name = socket_name(number)
    try:
        found = os.stat(name, dir_fd=folder.descriptor, follow_symlinks=False)
        if not stat.S_ISSOCK(found.st_mode) or found.st_uid != os.geteuid():
            return None
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_PATIENCE_S)
            try:
                connection.connect(reachable_path(folder, name))
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
        if not isinstance(said, dict):
            raise ValueError("not an answer")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        return {"ok": False, "error": f"the command at {name} does not answer: {error}"}
    return said


def _remove_stale(folder: SandboxFolder, name: str) -> None:
    """Remove a socket that a killed command left. Under the lock: one that is just being made refuses as well."""
    with suppress(OSError, ExeatError), folder.locked(), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as again:
        again.settimeout(_PATIENCE_S)
        try:
            again.connect(reachable_path(folder, name))
        except ConnectionRefusedError:
            os.unlink(name, dir_fd=folder.descriptor)
