"""Ordinary ways to be started that the jail must not get in the way of."""

from __future__ import annotations

import os
import pty
import subprocess
from contextlib import ExitStack
from pathlib import Path

from tests.support.programs import give_up, need
from tests.support.runs.running import AS_ROOT, PYTHON, environment, exeat, run_argv

_MANY = 300


def test_a_terminal_with_a_high_number_can_be_used_with_few_descriptors() -> None:
    """On a machine with many users the terminal's number is larger than a process may have files open."""
    with ExitStack() as stack:
        masters: list[int] = []
        number, slave = -1, -1
        while number < _MANY:
            if len(masters) > 2 * _MANY:
                give_up("no terminal with a high number can be had")
            if slave >= 0:
                os.close(slave)
            master, slave = pty.openpty()
            masters.append(master)
            stack.callback(os.close, master)
            number = int(Path(os.ttyname(slave)).name)
        stack.callback(os.close, slave)

        few = (_MANY // 2, _MANY // 2)
        limits = f"import os, resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, {few});"
        before = [PYTHON, "-c", f"{limits} os.execvp(sys.argv[1], sys.argv[1:])"]
        control = exeat(command=["echo", "ran"], before=before)
        assert control.stdout == "ran\n", control.stderr
        done = exeat(command=["echo", "ran"], before=before, stdin=slave)
        assert done.stdout == "ran\n", done.stderr


_SPAWN_WITH_CHANNEL = """
const {spawn} = require("child_process");
const child = spawn(process.argv[1], process.argv.slice(2), {stdio: ["ignore", "inherit", "inherit", "ipc"]});
child.on("exit", (status, signal) => { console.log("status", status, signal); });
"""


def test_node_runs_in_a_jail_that_node_has_started_with_a_channel() -> None:
    """The channel is a socket and is closed; the variable that names its number must go as well, or Node aborts."""
    need("node")
    inner = ["node", "-e", "console.log('ran')"]
    for argv in (inner, run_argv((), inner)):
        whole = ["node", "-e", _SPAWN_WITH_CHANNEL, *argv]
        done = subprocess.run(whole, capture_output=True, text=True, timeout=40, env=environment(), check=False)
        assert "ran" in done.stdout
        assert "status 0 null" in done.stdout, f"{done.stdout}{done.stderr}"


_SERVE = """
import os, socket
if os.path.lexists("app.sock"):
    os.unlink("app.sock")
listener = socket.socket(socket.AF_UNIX)
listener.bind("app.sock")
listener.listen()
print("serving")
"""


def test_a_server_can_be_started_again_over_its_old_socket(tmp_path: Path) -> None:
    """No one listens there any more: it is no way out, and under a mount it cannot be removed."""
    for _ in range(2):
        outside = subprocess.run([PYTHON, "-c", _SERVE], capture_output=True, text=True, check=False, cwd=tmp_path)
        assert outside.stdout == "serving\n", outside.stderr
    done = subprocess.run(
        run_argv((), [PYTHON, "-c", _SERVE]), capture_output=True, text=True, check=False, cwd=tmp_path, timeout=40
    )
    assert done.stdout == "serving\n", done.stderr


@AS_ROOT
def test_a_machine_without_terminals_will_do() -> None:
    """A chroot or a build container has a /dev with next to nothing in it."""
    need("unshare")
    script = (
        "mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3 && mknod -m 666 /dev/urandom c 1 9 &&"
        ' cd / && env echo control && exec "$@"'
    )
    done = exeat(command=["echo", "ran"], before=["unshare", "-m", "sh", "-c", script, "sh"])
    assert "control" in done.stdout, done.stderr
    assert "ran" in done.stdout, done.stderr
