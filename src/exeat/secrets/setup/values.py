"""Fetches values from files, variables and commands. Never shows the content of a file or a command's output.

Everything is loaded when this module is: the gateway renews values after it has given up loading code.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Final, Self

from exeat.errors import ConfigError
from exeat.secrets.model import Secret, SecretSpec
from exeat.secrets.setup.config import MAX_VALUE, VARIABLE, parse_secrets, value_fault
from exeat.secrets.setup.placeholder import fits_shape, make_placeholder
from exeat.secrets.setup.together import check_hidden, check_placeholders

_MAX_FILE_BYTES: Final = 1024 * 1024
_LINE_END: Final = 2  # bytes; not a part of the value
_STEP_S: Final = 0.05  # how often a silent command is asked whether it has ended
_KILL_S: Final = 5.0
_TRIES: Final = 20
_running: Final[set[subprocess.Popen[bytes]]] = set()  # commands, in any thread


def read_secrets_file(path: str) -> tuple[str, int]:
    """The text of a file that may hold values, and its mode. Raises ConfigError, never with a part of the text."""
    try:
        raw, mode = _read_regular(path, _MAX_FILE_BYTES)
    except OSError as error:
        raise ConfigError(
            f"cannot be read: {error.strerror}", where=path, expected="a readable secrets file in TOML or JSON"
        ) from None
    if raw is None:
        raise ConfigError("not a regular file", where=path, expected="secrets in TOML or JSON")
    if len(raw) > _MAX_FILE_BYTES:
        raise ConfigError("larger than 1 MiB", where=path, expected="a secrets file")
    try:
        return raw.decode("utf-8"), mode
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError("not UTF-8", where=f"{path}:{line}", expected="text in UTF-8") from None


def load_secrets_file(path: str) -> tuple[tuple[SecretSpec, ...], list[str]]:
    """The secrets of a file, and what the user should be warned of."""
    text, mode = read_secrets_file(path)
    specs = parse_secrets(text, path)
    return specs, mode_warnings(path, mode, specs)


def mode_warnings(path: str, mode: int, specs: Iterable[SecretSpec]) -> list[str]:
    """What to say of a file with values in it that every user of the machine can read."""
    if mode & stat.S_IROTH and any(spec.source.value is not None for spec in specs):
        return [f"{path}: holds a value, and every user of this machine can read it (mode {mode & 0o777:04o})"]
    return []


def source_warnings(specs: Iterable[SecretSpec]) -> list[str]:
    """The same for the files that secrets name. They are not opened."""
    warnings = []
    for spec in specs:
        if spec.source.refresh_s is not None and _is_within_reach(spec.source.command or ()):
            warnings.append(
                f"{spec.written}: {spec.name}: the command that you run can change the program that renews it, which"
                " then runs outside of the jail"
            )
        if spec.source.file is None:
            continue
        start = f"{spec.written}: {spec.name}: its file"
        try:
            mode = os.stat(spec.source.file).st_mode
        except OSError as error:
            warnings.append(f"{start} cannot be read: {error.strerror}")
            continue
        if mode & stat.S_IROTH:
            warnings.append(f"{start} can be read by every user of this machine (mode {mode & 0o777:04o})")
    return warnings


def _is_within_reach(argv: tuple[str, ...]) -> bool:
    """Could a process with our user's rights change what is run? A script that it is given counts as well."""
    program = shutil.which(argv[0]) if argv else None
    files = [os.path.realpath(each) for each in (program or "", *argv[1:]) if each and os.path.isfile(each)]
    return any(os.access(path, os.W_OK) or os.access(os.path.dirname(path), os.W_OK) for path in files)


def _pinned(spec: SecretSpec, environ: Mapping[str, str]) -> SecretSpec:
    """The same with the full path of its program: later, another of that name may stand before it in PATH."""
    command = spec.source.command
    if not command or os.sep in command[0]:
        return spec
    found = shutil.which(command[0], path=environ.get("PATH"))
    if found is None:
        return spec  # an error, when it is run
    return replace(spec, source=replace(spec.source, command=(os.path.abspath(found), *command[1:])))


MakeUp = Callable[[Mapping[str, bytes]], dict[str, bytes]]
Settle = Callable[[MakeUp], dict[str, bytes]]  # calls it with the placeholders that were kept, and keeps what it made


def fetch(specs: Iterable[SecretSpec], environ: Mapping[str, str], settle: Settle | None = None) -> tuple[Secret, ...]:
    """Fetch every value, once. Raises ConfigError with the name of the secret for which there is none.

    `settle`: placeholders are kept, and used again as long as they are of the right shape and unlike all others.
    """
    by_name = {spec.name: _pinned(spec, environ) for spec in specs}
    values = {name: fetch_one(spec, environ) for name, spec in by_name.items()}
    placeholders = {name: spec.placeholder.encode() for name, spec in by_name.items() if spec.placeholder}
    check_placeholders(by_name, placeholders)
    for name, value in values.items():
        check_hidden(by_name[name], value, placeholders)

    def make_up(kept: Mapping[str, bytes]) -> dict[str, bytes]:
        whole = dict(placeholders)
        for name, spec in by_name.items():
            if name not in whole:
                whole[name] = _make_unlike(spec, by_name, values, whole, kept.get(name, b""))
        return whole

    whole = make_up({}) if settle is None else settle(make_up)
    return tuple(Secret(spec, whole[name], values[name]) for name, spec in by_name.items())


def _make_unlike(
    spec: SecretSpec,
    by_name: Mapping[str, SecretSpec],
    values: Mapping[str, bytes],
    placeholders: Mapping[str, bytes],
    kept: bytes,
) -> bytes:
    """A placeholder unlike all others and all values: the one that was kept, or else a new one.

    By chance the first is, unless a value is a few letters long.
    """
    first = kept if fits_shape(spec.shape, kept) else b""
    for left in reversed(range(_TRIES)):
        made, first = first or make_placeholder(spec.shape, spec.name), b""
        if any(each in made or made in each for each in placeholders.values()):
            continue
        try:
            for name, value in values.items():
                check_hidden(by_name[name], value, {spec.name: made})
        except ConfigError:
            if not left:
                raise
        else:
            return made
    raise _fault(spec, "no placeholder found that differs from the others", "other placeholders, or another shape")


def renewal_plan(secrets: Iterable[Secret]) -> tuple[tuple[Secret, float], ...]:
    """The secrets whose command is to be run again, and after how many seconds each."""
    return tuple((each, each.spec.source.refresh_s) for each in secrets if each.spec.source.refresh_s is not None)


def fetch_one(spec: SecretSpec, environ: Mapping[str, str], placeholders: Mapping[str, bytes] | None = None) -> bytes:
    """The value of one secret as it is now. Blocks: a gateway calls it in a thread, with all placeholders by name."""
    source = spec.source
    if source.value is not None:
        value = source.value.encode()
    elif source.env is not None:
        if source.env not in environ:
            raise _fault(spec, f"the variable {source.env} is not set", "a variable with the value")
        value = os.fsencode(environ[source.env])
    elif source.file is not None:
        value = _without_line_end(_read_value_file(spec, source.file))
    else:
        value = _without_line_end(_run(spec, source.command or (), environ))
    if problem := value_fault(value):
        raise _fault(spec, problem, "one line of text")
    if placeholders:
        check_hidden(spec, value, placeholders)
    return value


def variables_to_drop(specs: Iterable[SecretSpec]) -> frozenset[str]:
    """The variables that hold values, which the command must not see."""
    return frozenset((VARIABLE, *(spec.source.env for spec in specs if spec.source.env is not None)))


def files_to_hide(specs: Iterable[SecretSpec]) -> tuple[str, ...]:
    """The files that hold values, which the command must not see: as they are named, for a link may lead elsewhere
    later, and with links followed, for a link may be turned away from them.
    """
    named = [spec.source.file for spec in specs if spec.source.file is not None]
    return tuple(dict.fromkeys(each for path in named for each in (path, os.path.realpath(path))))


def _fault(spec: SecretSpec, problem: str, expected: str) -> ConfigError:
    return ConfigError(f"{spec.name}: {problem}", where=str(spec.written), expected=expected)


def _without_line_end(output: bytes) -> bytes:
    line = output.removesuffix(b"\n")
    return line.removesuffix(b"\r") if line != output else output


def _read_value_file(spec: SecretSpec, path: str) -> bytes:
    try:
        raw, _ = _read_regular(path, MAX_VALUE + _LINE_END)
    except OSError as error:
        raise _fault(spec, f"its file cannot be read: {error.strerror}", "a file with the value") from None
    if raw is None:
        raise _fault(spec, "its file is not a regular file", "a file with the value")
    return raw


def _read_regular(path: str, limit: int) -> tuple[bytes | None, int]:
    """At most one byte over the limit, and the mode; no bytes if it is a pipe, a device or a folder."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            return None, mode
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(limit + 1), mode
    finally:
        os.close(descriptor)


def _run(spec: SecretSpec, argv: tuple[str, ...], environ: Mapping[str, str]) -> bytes:
    """What the command prints. It has no input and no terminal; what it complains of goes where ours does."""
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        # The kernel drops the status then, and Python makes a 0 of it.
        raise _fault(
            spec,
            "the exit status of its command is unknown: SIGCHLD is ignored",
            "exeat started with SIGCHLD not ignored",
        )
    deadline = time.monotonic() + spec.source.timeout_s
    try:
        with _Undisturbed() as signals:
            process = subprocess.Popen(  # noqa: S603 - the user's own command, and no shell
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=dict(environ), start_new_session=True
            )
            _running.add(process)
    except OSError as error:
        raise _fault(spec, f"its command cannot be started: {error.strerror}", "a program in PATH") from None
    try:
        signals.pass_on()
        output = _output_until(process, deadline)
    finally:
        _running.discard(process)
        if process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                _kill(process)
                process.wait(_KILL_S)
        if process.stdout is not None:
            process.stdout.close()
    if output is None:
        raise _fault(spec, f"its command did not end within {spec.source.timeout_s:g} s", "a longer timeout_s")
    if len(output) > MAX_VALUE + _LINE_END:
        raise _fault(spec, "its command printed over 64 KiB", "the value and nothing else")
    if process.returncode < 0:
        raise _fault(spec, f"its command was ended by signal {-process.returncode}", "exit status 0")
    if process.returncode > 0:
        raise _fault(spec, f"its command ended with status {process.returncode}", "exit status 0")
    return output


class _Undisturbed:
    """A signal that ends us by an exception waits until the command is known: otherwise nothing would end that.

    Not by a mask, which the command would inherit. Other threads than the main one get no such exception.
    """

    def __enter__(self) -> Self:
        self._came: list[int] = []
        is_main = threading.current_thread() is threading.main_thread()
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM) if is_main}
        # What is ignored or does the usual is inherited as that.
        self._before = {number: handler for number, handler in handlers.items() if callable(handler)}
        for number in self._before:
            signal.signal(number, self._note)
        return self

    def _note(self, number: int, frame: object) -> None:
        self._came.append(number)

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def pass_on(self) -> None:
        """Those that came meanwhile. May raise what their handlers do."""
        for number in self._came:
            signal.raise_signal(number)


def end_commands() -> None:
    """End those that are at work now, in whatever thread, with all that they have started."""
    for process in tuple(_running):
        if process.poll() is None:
            _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Not waited for yet, so the number is still its own. One that runs as another user cannot be ended."""
    with suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)


def _output_until(process: subprocess.Popen[bytes], deadline: float) -> bytes | None:
    """All that it prints, or None if it has not ended in time. More than a value can have is not read to its end.

    A daemon that it has left behind may hold the pipe open for ever, so its own end is enough.
    """
    assert process.stdout is not None, "it was asked for"
    descriptor = process.stdout.fileno()
    os.set_blocking(descriptor, False)
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    output = b""
    while (left := deadline - time.monotonic()) > 0:
        ended = process.poll() is not None  # asked before reading: what it printed is in the pipe by now
        poller.poll(0 if ended else min(left, _STEP_S) * 1000)
        try:
            piece = os.read(descriptor, MAX_VALUE)
        except BlockingIOError:
            if ended:
                return output
            continue
        output += piece
        if len(output) > MAX_VALUE + _LINE_END:
            return output
        if not piece:
            try:
                process.wait(left)
            except subprocess.TimeoutExpired:
                return None
            return output
    return None
