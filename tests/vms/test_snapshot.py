"""A machine that was saved: the next runs of the sandbox continue it, or boot and say why."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from exeat.jail.vm.saved.state import read_head, read_state, write_state
from tests.support.fixtures.vms import Guest
from tests.support.gateways.scene import wait_until
from tests.support.programs import Finished
from tests.support.runs.running import Process, descendants_of, environment, exeat, python

# A guest that was saved was told to wait by its firmware. Only root can read what that says.
LOOK = r"""
import json, os, time
told = open("/sys/firmware/dmi/entries/11-0/raw", "rb").read()
print(json.dumps({
    "continued": b"exeat:wait=1" in told,
    "random": os.urandom(16).hex(),
    "boot": open("/proc/sys/kernel/random/boot_id").read(),
    "time": time.time(),
    "memory": os.sysconf("SC_PHYS_PAGES") * 4096 >> 20,
    "host": os.uname().nodename,
    "here": os.getcwd(),
}))
"""
_OF_SANDBOX = {"allowlist.txt", "audit.jsonl", "lock"}
_STATE = "machine.state"


class Sandbox:
    """With a name, in a home of its own."""

    def __init__(self, home: Path, guest: Guest) -> None:
        self.folder = home / "sandboxes" / "box"
        self.state = self.folder / _STATE
        self._options = guest.options
        self._environ = environment(EXEAT_HOME=str(home), **guest.environment)

    def argv(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "exeat", *words, "--name", "box"]

    def exeat(self, *words: str) -> Finished:
        return exeat(argv=self.argv(*words), env=self._environ)

    def look(self, *options: str) -> tuple[dict[str, object], str]:
        """What the guest sees, and what was said about it."""
        argv = [*self.argv("run", *self._options, "--guest-root", *options), "--", *python(LOOK)]
        before = time.time()
        done = exeat(argv=argv, env=self._environ)
        assert done.status == 0, done.stderr
        seen: dict[str, object] = json.loads(done.stdout)
        assert isinstance(seen["time"], float)
        assert before - 2 < seen["time"] < time.time() + 2
        assert seen["host"] == os.uname().nodename
        return seen, done.stderr

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            words,
            env=self._environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


@pytest.fixture(scope="module")
def saved(guest: Guest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    sandbox = Sandbox(tmp_path_factory.mktemp("home").resolve(), guest)
    assert sandbox.exeat("proxy", "create", "--empty").status == 0
    done = sandbox.exeat("vm", "snapshot", "--accel", "tcg", "--memory", "256m")
    assert (done.status, done.stderr) == (0, ""), done.stderr
    assert "exeat run --vm --name box starts from it" in done.stdout
    assert sandbox.state.stat().st_mode & 0o777 == 0o600
    yield sandbox
    assert sandbox.exeat("vm", "forget").status == 0
    assert sandbox.exeat("vm", "forget").status == 1
    assert {path.name for path in sandbox.folder.iterdir()} <= _OF_SANDBOX


@pytest.mark.threat("T-V53")
def test_machines_of_one_snapshot_have_nothing_in_common_but_their_boot(saved: Sandbox) -> None:
    """Each has random numbers of its own, and the right time. Memory need not be said again."""
    one, said = saved.look()
    other, _ = saved.look()
    assert "not used" not in said
    assert one["continued"] is other["continued"] is True
    assert one["random"] != other["random"]
    assert one["boot"] != other["boot"]
    assert isinstance(one["memory"], int)
    assert 150 < one["memory"] <= 256


def test_another_machine_boots_and_says_so(saved: Sandbox) -> None:
    seen, said = saved.look("--memory", "200m")
    assert "exeat: the saved machine is not used: it has 256 MiB of memory, not 200; the guest boots\n" in said
    assert seen["continued"] is False


@pytest.mark.threat("T-V54")
def test_a_state_that_is_damaged_boots_and_says_so(saved: Sandbox) -> None:
    whole = saved.state.read_bytes()
    try:
        with saved.state.open("r+b") as file:
            file.seek(len(whole) // 2)
            file.write(bytes([whole[len(whole) // 2] ^ 1]))
        seen, said = saved.look()
    finally:
        saved.state.write_bytes(whole)
    assert "exeat: the saved machine is not used: it is damaged; the guest boots\n" in said
    assert seen["continued"] is False


def test_a_state_that_qemu_does_not_take_boots_and_says_so(saved: Sandbox) -> None:
    """As a QEMU that was changed without another date would: the file is whole, and the devices are not its own."""
    whole = saved.state.read_bytes()
    try:
        with saved.state.open("r+b") as file, open(os.memfd_create("memory"), "r+b", buffering=0) as memory:
            head = read_head(file.fileno())
            devices = read_state(file.fileno(), head, memory.fileno())
            file.truncate(0)
            file.seek(0)
            write_state(file.fileno(), head.made, devices.replace(b"virtio-net", b"virtio-not"), memory.fileno())
        seen, said = saved.look()
    finally:
        saved.state.write_bytes(whole)
    assert "exeat: the saved machine is not used: QEMU " in said
    assert seen["continued"] is False


def _qemu_below(pid: int) -> list[int]:
    found = []
    for each in descendants_of(pid):
        try:
            if Path(f"/proc/{each}/comm").read_text().startswith("qemu-system"):
                found.append(each)
        except OSError:
            continue
    return found


@pytest.mark.parametrize("what", ["snapshot", "run"])
def test_killed_it_leaves_nothing(saved: Sandbox, what: str) -> None:
    before = saved.state.read_bytes()
    words = saved.argv("vm", "snapshot") if what == "snapshot" else [*saved.argv("run", "--vm"), "--", "sleep", "100"]
    with saved.start(*words) as child:
        wait_until(lambda: bool(_qemu_below(child.pid)), "QEMU is started")
        processes = [Process(each) for each in descendants_of(child.pid)]
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    wait_until(lambda: not any(each.is_there for each in processes), "all of it has ended")
    assert {path.name for path in saved.folder.iterdir()} <= {*_OF_SANDBOX, _STATE}
    assert saved.state.read_bytes() == before
