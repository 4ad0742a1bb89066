"""Sandboxes as a whole: `exeat proxy ls|rm`, and the one that `exeat run --name N` opens or makes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple

from exeat.cli.screen import GREEN, aligned, confirmed, counted, in_ascii, plain, say
from exeat.errors import ConfigError, ExeatError
from exeat.files.layers.kept import layer_numbers
from exeat.sandbox.allowlist import read_allowlist
from exeat.sandbox.disk import disk_bytes
from exeat.sandbox.folder import (
    AUDIT,
    NoSandboxError,
    SandboxFolder,
    check_name,
    default_allowlist,
    list_sandboxes,
    open_sandbox,
    remove_sandbox,
)

if TYPE_CHECKING:
    from exeat.sandbox.control import Running


_HEADINGS = ("NAME", "STATE", "RULES", "RECORDS", "ALLOWED", "BLOCKED", "OPEN", "PENDING")
_NUMBERS = frozenset(range(2, 8))


class _Seen(NamedTuple):
    """A sandbox now. None is what could not be found out; `problem` says why."""

    name: str
    path: str
    rules: int | None
    records: int | None
    running: list[Running]
    problem: str = ""

    @property
    def state(self) -> str:
        if not self.running:
            return "idle"
        kinds = dict.fromkeys(", ".join(filter(None, (each.jail, each.mode))) for each in self.running)
        many = f"{len(self.running)} " if len(self.running) > 1 else ""
        return f"{many}running: {in_ascii('; '.join(kinds))}"

    def total(self, field: str) -> int:
        return sum(getattr(each, field) for each in self.running)


def list_names() -> int:
    """Names alone, for scripts and for Tab."""
    for name in list_sandboxes():
        print(name)
    return 0


def list_all(only: str | None, *, as_json: bool) -> int:
    """Print all sandboxes, or one. 1 if something is wrong with one of them."""
    if only is not None:
        open_sandbox(only).close()  # says so if there is no such sandbox
    seen = [_look(name) for name in ([only] if only is not None else list_sandboxes())]
    if as_json:
        import json

        print(json.dumps([_as_dict(each) for each in seen], indent=2))
    elif not seen:
        say("there are no sandboxes yet; exeat proxy create --name NAME creates one")
    else:
        _print_table(seen)
    for each in seen:
        if each.problem:
            say(f"exeat: {plain(each.problem)}", error=True)
    return 1 if any(each.problem for each in seen) else 0


def remove(name: str, *, yes: bool) -> int:
    """Remove a sandbox. Never one in which something runs: it would go on without its list and its log."""
    with open_sandbox(name) as folder:
        _refuse_if_running(name)
        records = counted(_records(folder) or 0, "line of log", "lines of log")
        kept = ", and the files that its commands changed (exeat files diff)" if layer_numbers(folder) else ""
        kept += ", and the disk of its virtual machines" if disk_bytes(folder) else ""
        what = f'this removes the sandbox "{name}", its list and its log ({records}) in {plain(folder.path)}{kept}'
    if not confirmed(what, yes=yes):
        return 1
    _refuse_if_running(name)  # it took a while to answer
    remove_sandbox(name)
    say(f'removed the sandbox "{name}"')
    return 0


def _refuse_if_running(name: str) -> None:
    from exeat.sandbox.control import running

    if found := running(name):  # one that hangs is there all the same
        commands = ", ".join(
            f"pid {each.pid} ({in_ascii(each.command)})" if each.pid else each.command for each in found
        )
        raise ExeatError(f'a command runs in the sandbox "{name}": {commands}', detail="end it first")


def _look(name: str) -> _Seen:
    from exeat.sandbox.control import running

    try:
        with open_sandbox(name) as folder:
            try:
                rules, problem = len(read_allowlist(folder).rules), ""
            except ConfigError as error:
                rules, problem = None, _first_line(error)
            return _Seen(name, folder.path, rules, _records(folder), running(name), problem)
    except ConfigError as error:
        return _Seen(name, "", None, None, [], _first_line(error))


def _records(folder: SandboxFolder) -> int | None:
    """The number of the last line of the log. The log is not read: it may be large. None: it is no log of ours."""
    from exeat.audit.parts import LogPlace, open_part, read_tail

    try:
        part = open_part(LogPlace(AUDIT, folder.descriptor))
    except ConfigError:
        return None
    if part is None:
        return 0
    with part:
        tail = read_tail(part.descriptor, part.size)
    return None if tail is None else tail.seq


def _first_line(error: ConfigError) -> str:
    return str(error).partition("\n")[0]


def _print_table(seen: list[_Seen]) -> None:
    rows: list[tuple[str, ...]] = [_HEADINGS]
    for each in seen:
        now = ("allowed", "denied", "open_connections", "pending")
        counts = [f"{each.total(field):,}" if each.running else "-" for field in now]
        rows.append((each.name, each.state, _number(each.rules), _number(each.records), *counts))
    lines = aligned(rows, right=_NUMBERS)
    say(lines[0])
    for each, line in zip(seen, lines[1:], strict=True):
        say(line, GREEN if each.running else "")


def _number(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"


def _as_dict(each: _Seen) -> dict[str, object]:
    return {
        "name": each.name,
        "path": each.path or None,
        "state": "running" if each.running else "idle",
        "rules": each.rules,
        "records": each.records,
        "allowed": each.total("allowed"),
        "denied": each.total("denied"),
        "open_connections": each.total("open_connections"),
        "pending": each.total("pending"),
        "running": [one._asdict() for one in each.running],
        "problem": each.problem or None,
    }


def open_for_run(name: str, *, new: bool, empty: bool) -> SandboxFolder:
    """Open it. If it is not there, `new` or `empty` make it, as does a user who says yes: a slip must not make a
    sandbox with a hundred rules. Raises ConfigError.
    """
    check_name(name)
    try:
        folder = open_sandbox(name, create=new or empty, empty=empty)
    except NoSandboxError as missing:
        if not _can_ask() or not _is_wanted(missing):
            raise
        folder = open_sandbox(name, create=True)
    if empty and not folder.was_created:
        try:
            _refuse_rules(folder)
        except BaseException:
            folder.close()
            raise
    return folder


def _refuse_rules(folder: SandboxFolder) -> None:
    """An --empty that has no effect would be believed to have one."""
    rules = len(read_allowlist(folder).rules)
    if rules:
        raise ConfigError(
            f"the sandbox {folder.name} already exists, and its list has {counted(rules, 'rule')}",
            where="--empty",
            expected=f"no --empty, or exeat proxy reset --empty --name {folder.name} first",
        )


def _can_ask() -> bool:
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))


def _is_wanted(missing: NoSandboxError) -> bool:
    from exeat.policy.document import parse_listing

    rules = len(parse_listing(default_allowlist(), ""))
    others = f" ({missing.others})" if missing.others else ""
    question = f"Create it with the list of {rules} rules that exeat comes with? [y/N] "
    print(f"exeat: there is no sandbox {missing.name}{others}.\n{question}", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    if not answer.endswith("\n"):
        print(file=sys.stderr)  # Ctrl-D leaves the cursor behind the question
    return answer.strip().lower() in ("y", "yes")
