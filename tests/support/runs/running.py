"""`exeat run` as a command: run to its end, or watched while it runs, as the caller or as someone without rights."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from tests.support.gateways.scene import wait_until
from tests.support.programs import Finished, give_up

NOBODY = 65534
TIMEOUT_S = 100
# For programs inside: one that another user can start too, where there is such a one.
PYTHON = "/usr/bin/python3" if Path("/usr/bin/python3").exists() else sys.executable
# Root can become someone without rights; someone without rights is tested as they are.
_USERS = {"caller": None, "nobody": NOBODY} if os.geteuid() == 0 else {"caller": None}
BY_USER = pytest.mark.parametrize("uid", _USERS.values(), ids=_USERS)
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def _make_anywhere() -> str:
    folder = tempfile.mkdtemp(prefix="exeat-anywhere-")
    Path(folder).chmod(0o755)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


# Where to be if that does not matter: everybody can enter it. Not the root, of which exeat says that it is not shared.
ANYWHERE = _make_anywhere()


def python(program: str, *arguments: str) -> list[str]:
    """A command that runs this program. It has nothing but the standard library."""
    return [PYTHON, "-I", "-S", "-c", program, *arguments]


def run_argv(options: Sequence[str], command: Sequence[str], uid: int | None = None) -> list[str]:
    return [*as_user(uid), sys.executable, "-m", "exeat", "run", *options, "--", *command]


def as_user(uid: int | None) -> list[str]:
    """What to put before a command so that it runs as this user, without groups or capabilities."""
    if uid is None:
        return []
    why = _why_not(uid)
    if why:
        give_up(why)
    return _become(uid)


def _become(uid: int) -> list[str]:
    return ["setpriv", "--reuid", str(uid), "--regid", str(uid), "--clear-groups"]


@functools.cache
def _why_not(uid: int) -> str:
    """Why exeat cannot be run as this user; empty if it can."""
    if shutil.which("setpriv") is None:
        return "setpriv is not installed"
    argv = [*_become(uid), sys.executable, "-m", "exeat", "--version"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, cwd="/")
    return f"uid {uid} cannot run {sys.executable} -m exeat: {done.stderr}" if done.returncode else ""


def environment(**added: str) -> dict[str, str]:
    """This process's environment without settings of exeat, and some more. Nor is there an active environment."""
    others = ("EXEAT_", "PROXY_", "VIRTUAL_ENV")
    return {key: value for key, value in os.environ.items() if not key.startswith(others)} | added


@functools.cache
def project() -> str:
    """A folder to work in, for every user: what a command writes there is real."""
    folder = tempfile.mkdtemp(prefix="exeat-project-")
    Path(folder).chmod(0o777)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def exeat(
    *options: str,
    command: Sequence[str] = (),
    uid: int | None = None,
    given: str | None = None,
    before: Sequence[str] = (),
    argv: Sequence[str] | None = None,
    **popen: Any,
) -> Finished:
    """Run to the end, without a terminal. `given` is standard input; `before` a command to be run under."""
    settings: dict[str, Any] = {
        "env": environment(),
        "start_new_session": True,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "stdin": subprocess.DEVNULL if given is None else subprocess.PIPE,
        "text": True,
        "errors": "surrogateescape",
        "cwd": project(),
    } | popen
    whole = [*before, *(run_argv(options, command, uid) if argv is None else argv)]
    with subprocess.Popen(whole, **settings) as child:
        try:
            out, errors = child.communicate(given, timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            out, errors = child.communicate()
            pytest.fail(f"still running after {TIMEOUT_S} s: {whole}\n{out}\n{errors}")
    assert "Traceback" not in (errors or ""), errors
    return Finished(child.returncode, out or "", errors or "")


@contextmanager
def folder_of(uid: int | None) -> Iterator[Path]:
    """A folder that this user owns and everybody can enter; pytest's own are closed to others."""
    with tempfile.TemporaryDirectory(prefix="exeat-run-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        if uid is not None:
            os.chown(folder, uid, uid)
        yield folder


class Process:
    """A process of someone else's, told apart from a later one of the same number."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.started = _stat(pid)[19]

    @property
    def is_there(self) -> bool:
        """Is it alive? A zombie is not."""
        try:
            fields = _stat(self.pid)
        except OSError:
            return False
        return fields[19] == self.started and fields[0] not in "ZX"

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        assert self.is_there
        os.kill(self.pid, number)


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the third on: state, parent, group, session ..."""
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()


def state_of(pid: int) -> str:
    return _stat(pid)[0]


def children_of(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and int(_stat(int(entry.name))[1]) == pid:
                found.append(int(entry.name))
        except (OSError, IndexError):
            continue  # it has just ended
    return found


def descendants_of(pid: int) -> list[int]:
    found = children_of(pid)
    return found + [each for child in found for each in descendants_of(child)]


def is_in_jail(pid: int) -> bool:
    """Has it a number of its own in a further PID namespace?"""
    lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    return any(line.startswith("NSpid:") and len(line.split()) > 2 for line in lines)


class Running:
    """`exeat run` while it runs, without a terminal, and its processes."""

    def __init__(
        self,
        folder: Path,
        *options: str,
        command: Sequence[str],
        uid: int | None = None,
        before: Sequence[str] = (),
        argv: Sequence[str] | None = None,
        **popen: Any,
    ) -> None:
        self._out, self._errors = folder / "run-out.txt", folder / "run-errors.txt"
        settings: dict[str, Any] = {"env": environment(), "start_new_session": True, "stdin": subprocess.DEVNULL}
        settings |= popen
        with self._out.open("wb") as out, self._errors.open("wb") as errors:
            self.process: subprocess.Popen[Any] = subprocess.Popen(
                [*before, *(run_argv(options, command, uid) if argv is None else argv)],
                stdout=out,
                stderr=errors,
                **settings,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(TIMEOUT_S)
        assert "Traceback" not in self.errors, self.errors

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def errors(self) -> str:
        return self._errors.read_text()

    def wait_for(self, text: str) -> None:
        wait_until(lambda: text in self.out or self.process.poll() is not None, f"{text!r}")
        assert text in self.out, f"it ended before: {self.out!r} {self.errors!r}"

    def wait(self) -> int:
        return self.process.wait(TIMEOUT_S)

    def _children(self, *, in_jail: bool) -> list[int]:
        return [pid for pid in children_of(self.process.pid) if is_in_jail(pid) == in_jail]

    def init(self) -> Process:
        """Process 1 of the jail. To be called when the command runs."""
        (pid,) = self._children(in_jail=True)
        return Process(pid)

    def gateway(self) -> Process:
        (pid,) = self._children(in_jail=False)
        return Process(pid)

    def inside(self) -> list[Process]:
        """The command and all others that init looks after."""
        return [Process(pid) for pid in descendants_of(self.init().pid)]


def wait_gone(processes: Sequence[Process]) -> None:
    wait_until(lambda: not any(each.is_there for each in processes), "all processes to end")


def environment_of(text: str) -> Mapping[str, str]:
    """What `env -0` printed."""
    return dict(item.split("=", 1) for item in text.split("\0") if item)


# Asks for each URL, with the proxy variables or without, and tells the status.
ASK = """
import sys, urllib.error, urllib.request
for url in sys.argv[1:]:
    try:
        print(urllib.request.urlopen(url, timeout=20).status)
    except urllib.error.HTTPError as error:
        print(error.code)
    except OSError as error:
        print(type(error).__name__)
"""


def hosts(*names: str) -> tuple[str, ...]:
    return tuple(item for name in names for item in ("--add-host", f"{name}:127.0.0.1"))
