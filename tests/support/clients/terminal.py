"""A pseudo terminal with a shell of the smallest kind on it: jobs in groups of their own, foreground and background.

The test types, reads and resizes on one side. On the other side a child, the leader of the terminal's session, starts
jobs and says how they stopped or ended. This file is also the child's program; it needs nothing beyond Python.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import secrets
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

_LIMIT_S = 60


class Terminal:
    """What the user of the terminal does and sees."""

    def __init__(self, env: Mapping[str, str], cwd: str = "/") -> None:
        self._master, slave = pty.openpty()
        self.resize(24, 80)
        ours, theirs = socket.socketpair()
        self._control = ours.makefile("rwb")
        self._seen = bytearray()
        with theirs:
            self._shell = subprocess.Popen(
                [sys.executable, "-I", __file__, str(theirs.fileno())],
                stdin=slave,
                stdout=slave,
                stderr=slave,
                env=dict(env),
                cwd=cwd,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        ours.settimeout(_LIMIT_S + 10)
        ours.close()
        os.close(slave)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ask({"what": "end"})
        self._shell.wait(_LIMIT_S)
        self._control.close()
        self._reader.join(_LIMIT_S)
        if self._master >= 0:
            os.close(self._master)
        assert "Traceback" not in self.text, self.text

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._master, 65_536)
            except OSError:  # no one has the other side open any more
                return
            if not data:
                return
            self._seen += data

    def _ask(self, request: Mapping[str, Any]) -> Any:
        self._control.write(json.dumps(request).encode() + b"\n")
        self._control.flush()
        answer = self._control.readline()
        assert answer, f"the shell has gone: {self.text}"
        return json.loads(answer)

    @property
    def text(self) -> str:
        """All that was shown so far."""
        return self._seen.decode(errors="replace").replace("\r\n", "\n")

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def wait_for(self, text: str, times: int = 1) -> None:
        deadline = time.monotonic() + _LIMIT_S
        while self.text.count(text) < times:
            assert time.monotonic() < deadline, f"waited in vain for {text!r}, saw {self.text!r}"
            time.sleep(0.005)

    def start(self, argv: Sequence[str], *, foreground: bool = True) -> int:
        """Start a job; returns the number of its first process, which is that of its group."""
        pid = self._ask({"what": "start", "argv": list(argv), "foreground": foreground})
        assert isinstance(pid, int)
        return pid

    def wait(self, pid: int) -> tuple[str, int]:
        """Until a job stops or ends: "stopped" and the signal, "exited" and the status, "killed" and the signal.

        All that it wrote is in `text` then.
        """
        mark = f"<{secrets.token_hex(8)}>"
        how, value, is_marked = self._ask({"what": "wait", "pid": pid, "mark": mark})
        assert how != "late", f"job {pid} neither stopped nor ended, and showed {self.text!r}"
        if is_marked:
            self.wait_for(mark)
            place = self._seen.index(mark.encode())
            del self._seen[place : place + len(mark)]
        return str(how), int(value)

    def go_on(self, pid: int, *, foreground: bool = True) -> None:
        """`fg` or `bg`."""
        self._ask({"what": "go_on", "pid": pid, "foreground": foreground})

    def hang_up(self) -> None:
        """Close the window. Only for a terminal whose session leader is gone or ignores it, as the shell here does."""
        os.close(self._master)
        self._master = -1


# The child


def _take_terminal(group: int) -> None:
    os.tcsetpgrp(0, group)  # SIGTTOU is ignored


def _start(argv: list[str], *, foreground: bool) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            os.setpgid(0, 0)
            if foreground:
                _take_terminal(os.getpid())
            for number in (
                signal.SIGTTOU,
                signal.SIGTTIN,
                signal.SIGTSTP,
                signal.SIGHUP,
                signal.SIGINT,
                signal.SIGQUIT,
            ):
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            os.execvp(argv[0], argv)
        finally:
            os._exit(127)
    try:
        os.setpgid(pid, pid)
    except OSError:
        pass  # the child was quicker, and has called exec
    if foreground:
        _take_terminal(pid)
    return pid


def _wait(pid: int) -> tuple[str, int]:
    deadline = time.monotonic() + _LIMIT_S
    while time.monotonic() < deadline:
        found, status = os.waitpid(pid, os.WUNTRACED | os.WNOHANG)
        if not found:
            time.sleep(0.005)
            continue
        try:
            _take_terminal(os.getpgrp())
        except OSError:
            pass  # the window was closed
        if os.WIFSTOPPED(status):
            return "stopped", os.WSTOPSIG(status)
        if os.WIFSIGNALED(status):
            return "killed", os.WTERMSIG(status)
        return "exited", os.WEXITSTATUS(status)
    return "late", 0


def _write(mark: str) -> bool:
    """Behind all that was written before. Not on a terminal whose window was closed."""
    try:
        return os.write(1, mark.encode()) == len(mark)
    except OSError:
        return False


def _go_on(pid: int, *, foreground: bool) -> None:
    if foreground:
        _take_terminal(pid)
    os.killpg(pid, signal.SIGCONT)


def _end(started: list[int]) -> None:
    """Nothing that was started here may live on."""
    for pid in started:
        try:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        except (ProcessLookupError, ChildProcessError):
            continue


def _be_shell(control: Any) -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    for number in (signal.SIGTTOU, signal.SIGTTIN, signal.SIGTSTP, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    started: list[int] = []
    for line in control:
        request = json.loads(line)
        answer: Any = None
        match request["what"]:
            case "start":
                answer = _start(request["argv"], foreground=request["foreground"])
                started.append(answer)
            case "wait":
                answer = (*_wait(request["pid"]), _write(request["mark"]))
                if answer[0] in ("exited", "killed"):
                    started.remove(request["pid"])
            case "go_on":
                _go_on(request["pid"], foreground=request["foreground"])
        if request["what"] == "end":
            break
        control.write(json.dumps(answer).encode() + b"\n")
        control.flush()
    _end(started)
    control.write(b"null\n")
    control.flush()


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as theirs, theirs.makefile("rwb") as speaking:
        os.set_inheritable(theirs.fileno(), False)
        _be_shell(speaking)
