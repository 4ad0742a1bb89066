"""Attacks by way of jails that were made before anyone knew what to run in them: what they have, and what changes."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from exeat.embed.sandbox_manager import SandboxManager
from exeat.embed.stock import PreparedProcess
from exeat.errors import ConfigError, ExeatError
from tests.support.gateways.scene import wait_until
from tests.support.runs.leak_scan import Needles, in_memory
from tests.support.runs.made_ahead import run_all, secret_file, standing
from tests.support.runs.running import AS_ROOT, Process, children_of, descendants_of, python, wait_gone

_TOKEN = "tok-en-0123456789-abcdef"


@pytest.mark.threat("T-P11")
def test_no_value_is_in_what_waits(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither under its own name nor under another. The control: the command's gateway process has it."""
    token = secrets.token_hex(12)
    value = f"sk-{secrets.token_hex(8)}{token}0001"
    needles = Needles(f"{token}0001"[-24:], {"key": value})
    monkeypatch.setenv("API_KEY", value)
    monkeypatch.setenv("ANOTHER_NAME", f"Bearer {value}")
    others = set(descendants_of(os.getpid()))

    async def work(manager: SandboxManager) -> None:
        await standing(manager)
        waiting = set(descendants_of(os.getpid())) - others
        assert len(waiting) >= 4  # the starter; runner, gateway process, init, and what is to be the command
        assert [pid for pid in waiting if in_memory(pid, needles)] == []
        task = asyncio.create_task(manager.run(["sleep", "70451"]))
        await asyncio.to_thread(wait_until, lambda: bool(_named("sleep 70451", others)), "the command")
        holding = [pid for pid in waiting if pid in descendants_of(os.getpid()) and in_memory(pid, needles)]
        assert len(holding) == 1
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run_all(work, secrets=secret_file(place.parent))


def _named(command: str, others: set[int]) -> list[int]:
    found = []
    for pid in set(descendants_of(os.getpid())) - others:
        try:
            if Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip() == command:
                found.append(pid)
        except OSError:
            continue  # it has just ended
    return found


@pytest.mark.threat("T-P12")
def test_no_two_have_the_same_of_anything(place: Path, used: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """Placeholder, certificate and layer are each command's own, though all were made from one process."""
    monkeypatch.setenv("API_KEY", "sk-the-value-itself-0123456789")
    texts: list[str] = []

    async def work(manager: SandboxManager) -> None:
        show = "cat ~/left 2>&1; echo $API_KEY; sha256sum < $SSL_CERT_FILE; echo mine > ~/left"
        for _ in range(3):
            await standing(manager)
            texts.append((await manager.run(["sh", "-c", show])).text)

    run_all(work, prepared=3, secrets=secret_file(place.parent))
    assert used == [True] * 3
    lines = [text.splitlines() for text in texts]
    assert len({each[1] for each in lines}) == len({each[2] for each in lines}) == 3
    assert all("No such file" in each[0] for each in lines)
    assert "the-value" not in "".join(texts)


@pytest.mark.threat("T-P12")
def test_a_secret_is_that_of_the_moment_it_is_taken(place: Path, used: list[bool], tmp_path: Path) -> None:
    """Of a file that has changed meanwhile, too: then a new jail is made. No command finds an older value."""
    value, log = place.parent / "value", tmp_path / "asked"
    value.write_text("the-first-value-0123456789")
    value.chmod(0o600)
    script = tmp_path / "fetch"
    script.write_text(f"#!/bin/sh\necho asked >> {log}\necho a-value-of-a-command-0123456789\n")
    script.chmod(0o700)
    file = place.parent / "secrets.toml"
    file.write_text(
        f'[ONE]\ncommand = ["{script}"]\nhosts = ["api.test"]\n[TWO]\nfile = "{value}"\nhosts = ["api.test"]\n'
    )
    file.chmod(0o600)

    async def work(manager: SandboxManager) -> None:
        await standing(manager)
        assert not log.exists()  # it stands, and nothing was fetched
        assert (await manager.run(["true"])).returncode == 0
        assert log.read_text() == "asked\n"
        await standing(manager)
        value.write_text("the-other-value-0123456789")
        assert (await manager.run(["true"])).returncode == 0

    run_all(work, secrets=str(file))
    assert used == [True, False]


def _a_key(place: Path) -> None:
    (place.parent / ".aws").mkdir()
    (place.parent / ".aws" / "credentials").write_text("key")


def _a_repository(place: Path) -> None:
    subprocess.run(["git", "init", "-q", str(place)], check=True, timeout=40)


def _a_hook(place: Path) -> None:
    (place / ".git" / "hooks" / "pre-commit").write_text("#!/bin/sh\n")


def _another_folder(place: Path) -> None:
    """The protected folder of before is away, and one like it is there."""
    (place / ".vscode").rename(place / "old")
    (place / ".vscode").mkdir()
    (place / ".vscode" / "tasks.json").write_text("{}")


def _settings(place: Path) -> None:
    (place / ".vscode").mkdir()
    (place / ".vscode" / "tasks.json").write_text("{}")


def _link_to_settings(place: Path) -> None:
    """With the times of the folder that was there."""
    folder = place / ".vscode"
    times = folder.stat()
    folder.rename(place / "elsewhere")
    folder.symlink_to("elsewhere")
    os.utime(folder, ns=(times.st_atime_ns, times.st_mtime_ns), follow_symlinks=False)


def _a_repository_below(place: Path) -> None:
    (place / "below").mkdir()
    _a_repository(place / "below")


def _repository_with_hooks(place: Path) -> None:
    _a_repository(place)
    for name in ("hooks-a", "hooks-b"):
        (place / name).mkdir()
        (place / name / "pre-commit").write_text("#!/bin/sh\n")
    with (place / ".git" / "config").open("a") as file:
        file.write("\thooksPath = hooks-a\n")


def _other_hooks(place: Path) -> None:
    """By settings of the same length and time, in the same file."""
    config = place / ".git" / "config"
    times, text = config.stat(), config.read_text()
    assert "hooks-a" in text
    with config.open("r+") as file:
        file.write(text.replace("hooks-a", "hooks-b"))
    os.utime(config, ns=(times.st_atime_ns, times.st_mtime_ns))


def _second_name(place: Path) -> None:
    (place / "second").hardlink_to(place / ".git" / "config")


def _file_in_the_project(place: Path) -> None:
    (place / "src").write_text("new")


def _nothing(place: Path) -> None:
    pass


def files_in(place: Path) -> dict[Path, str]:
    files = (path for path in place.rglob("*") if path.is_file() and path.suffix != ".sample")
    return {path: path.read_text() for path in files}


SHOW_KEY = "cat ~/.aws/credentials; ls -A ~/.aws"
WRITE_HOOK = "mkdir -p .git/hooks; echo 'echo out' > .git/hooks/pre-commit; echo x >> .git/config"
WRITE_TASKS = "echo 'mine' > .vscode/tasks.json"
CHANGES: list[tuple[str, Callable[[Path], None], Callable[[Path], None], str, bool]] = [
    ("nothing", _nothing, _nothing, "cat ~/.aws/credentials", True),
    ("a key is made", _nothing, _a_key, SHOW_KEY, False),
    ("a repository is made", _nothing, _a_repository, WRITE_HOOK, False),
    ("editor settings are made", _nothing, _settings, WRITE_TASKS, False),
    ("editor settings are replaced", _settings, _another_folder, WRITE_TASKS, False),
    ("a hook is changed in a folder that is held", _a_repository, _a_hook, WRITE_HOOK, True),
    ("a folder becomes a link with its times", _settings, _link_to_settings, WRITE_TASKS, False),
    ("a repository is made below", _nothing, _a_repository_below, f"cd below && {WRITE_HOOK}", False),
    ("git is told of other hooks", _repository_with_hooks, _other_hooks, "echo out >> hooks-b/pre-commit", False),
    ("settings get a second name", _a_repository, _second_name, WRITE_HOOK, False),
    ("a file is made in the project", _repository_with_hooks, _file_in_the_project, WRITE_HOOK, True),
]


@pytest.mark.threat("T-P13")
@pytest.mark.parametrize(
    ("before", "change", "attempt", "is_used"), [each[1:] for each in CHANGES], ids=[each[0] for each in CHANGES]
)
def test_what_changes_while_it_waits_is_not_missed(
    before: Callable[[Path], None], change: Callable[[Path], None], attempt: str, is_used: bool, place: Path,
    used: list[bool],
) -> None:  # fmt: skip
    """A key of now is hidden, and what would run outside later is held, as in a jail that is made now."""
    before(place)
    kept: dict[Path, str] = {}

    async def work(manager: SandboxManager) -> None:
        await standing(manager)
        change(place)
        kept.update(files_in(place))
        done = await manager.run(["sh", "-c", attempt])
        assert done.returncode != 0
        assert "key" not in done.text

    run_all(work)
    assert used == [is_used]
    assert {path: path.read_text() for path in kept} == kept


@pytest.mark.threat("T-P13")
def test_a_socket_that_was_bound_in_the_project_meanwhile_is_dead(place: Path, used: list[bool]) -> None:
    """The control: outside it answers."""
    attempt = "import socket; socket.socket(socket.AF_UNIX).connect('late.sock')"

    async def work(manager: SandboxManager) -> None:
        await standing(manager)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("late.sock")
            listener.listen()
            control = await asyncio.create_subprocess_exec(sys.executable, "-c", attempt)
            assert await control.wait() == 0
            done = await manager.run(python(attempt))
            assert b"ConnectionRefusedError" in done.stderr or b"PermissionError" in done.stderr

    run_all(work)
    assert used == [False]


@pytest.mark.threat("T-P13")
def test_a_log_that_was_replaced_meanwhile_is_hidden(place: Path, used: list[bool]) -> None:
    """It lies in the project. What is at its place now is what the gateway writes to, and what must not be read."""
    log = place / "audit.jsonl"

    async def work(manager: SandboxManager) -> None:
        await standing(manager)
        log.rename(place / "older")
        done = await manager.run(["sh", "-c", "cat audit.jsonl; echo forged >> audit.jsonl"])
        assert "start" not in done.text

    run_all(work, audit_log=str(log))
    assert used == [False]
    assert '"event":"start"' in log.read_text()
    assert "forged" not in log.read_text()


@pytest.mark.threat("T-P13")
def test_the_surroundings_of_now_count(place: Path, used: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """Folder, home and umask. What a jail made ahead can be told later needs no new one."""
    other = place.parent / "other"
    other.mkdir()

    async def work(manager: SandboxManager) -> None:
        await standing(manager)
        before = os.umask(0o027)
        try:
            assert (await manager.run(["sh", "-c", "umask; echo $ONLY_NOW"], env={"ONLY_NOW": "1"})).text == "0027\n1\n"
        finally:
            os.umask(before)
        assert used[-1]
        await standing(manager)
        assert (await manager.run(["pwd"], cwd=other)).text == f"{other}\n"
        assert not used[-1]
        await standing(manager)
        monkeypatch.setenv("HOME", str(other))
        assert (await manager.run(["sh", "-c", "echo ~"])).text == f"{other}\n"
        assert not used[-1]
        await standing(manager)
        monkeypatch.chdir(other)
        assert (await manager.run(["pwd"])).text == f"{other}\n"
        assert not used[-1]

    run_all(work)


@pytest.mark.threat("T-P13")
def test_a_folder_of_the_same_name_is_another_folder(place: Path, used: list[bool]) -> None:
    def replace() -> None:
        place.rename(place.parent / "moved")
        place.mkdir()
        os.chdir(place)
        (place / "here").touch()

    async def work(manager: SandboxManager) -> None:
        await standing(manager)
        replace()
        assert (await manager.run(["ls"])).text == "here\n"

    run_all(work)
    assert used == [False]


@pytest.mark.threat("T-P14")
@pytest.mark.parametrize("end", ["close", "drop", "kill"])
def test_nothing_that_waits_outlives_its_program(end: str, place: Path) -> None:
    program = f"""
import asyncio, gc, os, sys
from exeat.embed.sandbox_manager import SandboxManager
async def main():
    manager = SandboxManager({{"sandbox": {{"audit_log": "audit.jsonl"}}}}, prepared=2)
    await manager.start()
    print("ready", flush=True)
    sys.stdin.readline()
    if {end!r} == "close":
        await manager.aclose()
    del manager
    gc.collect()
    print("done", flush=True)
    sys.stdin.readline()
asyncio.run(main())
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        family = [Process(pid) for pid in descendants_of(child.pid)]
        assert len(family) >= 7
        if end == "kill":
            child.send_signal(signal.SIGKILL)
        else:
            child.stdin.write("\n")
            child.stdin.flush()
            assert child.stdout.readline() == "done\n"
        wait_gone(family)
        child.kill()
    if end == "close":  # whoever is killed cannot remove anything
        assert not (place / "audit.jsonl").exists()


@pytest.mark.threat("T-P14")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("who", ["runner", "gateway", "init"])
def test_one_that_was_killed_or_stopped_costs_no_run(
    who: str, number: signal.Signals, place: Path, used: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command runs in another, and what is left of the first goes."""
    monkeypatch.setattr("exeat.embed.stock._TAKE_S", 1.0)

    async def work(manager: SandboxManager) -> None:
        await standing(manager)
        assert manager._stock is not None
        process = manager._stock._waiting[0].process
        assert isinstance(process, PreparedProcess)
        gateway, init = sorted(children_of(process._pid))[:2]
        victim = Process({"runner": process._pid, "gateway": gateway, "init": init}[who])
        family = [Process(pid) for pid in (process._pid, gateway, init)]
        victim.kill(number)
        try:
            done = await manager.run(["echo", "on"], timeout_s=4)
            # Else too late for another: it had been told to begin. It is not said to have gone well.
            assert done.text == "on\n" or (who != "runner" and done.returncode == 128 + signal.SIGKILL)
        except ExeatError:
            assert who != "runner"
        finally:
            for each in family:
                if each.is_there:
                    each.kill(signal.SIGKILL)
        await asyncio.to_thread(wait_gone, family)

    run_all(work)


@pytest.mark.threat("T-P14")
def test_many_at_once_each_have_their_own(place: Path, used: list[bool]) -> None:
    async def work(manager: SandboxManager) -> None:
        await standing(manager)
        runs = [manager.run(["sh", "-c", f"cat; exit {n}"], input=f"{n}") for n in range(24)]
        done = await asyncio.gather(*runs)
        assert [(each.returncode, each.text) for each in done] == [(n, str(n)) for n in range(24)]

    run_all(work, prepared=4)
    assert sum(used) >= 4


@AS_ROOT
@pytest.mark.threat("T-P11")
def test_the_command_has_nothing_of_those_that_wait(place: Path, used: list[bool]) -> None:
    """No descriptor, no process, no Unix socket: only what is its own."""
    look = """
import os
print(sorted(n for n in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{n}")))
print(sum(n.isdigit() for n in os.listdir("/proc")))
print(len(open("/proc/net/unix").readlines()) - 1)
"""

    async def work(manager: SandboxManager) -> None:
        await standing(manager)
        assert (await manager.run(python(look))).text == "['0', '1', '2']\n2\n0\n"

    run_all(work, prepared=3)
    assert used == [True]


@contextmanager
def refused(words: str) -> Iterator[None]:
    with pytest.raises(ConfigError, match=re.escape(words)):
        yield


def test_what_cannot_be_made_ahead_is_refused(tmp_path: Path) -> None:
    async def ask(question: object) -> bool:
        return False

    with refused("a name"):
        SandboxManager({"sandbox": {"name": "work"}}, prepared=1)
    with refused("ask"):
        SandboxManager({"sandbox": {}}, ask=ask, prepared=1)
    with refused("enabled: false"):
        SandboxManager({"sandbox": {"enabled": False}}, prepared=1)
    with refused("audit_log"):
        SandboxManager({"sandbox": {"audit_log": "/dev/stdout"}}, prepared=1)
    with refused("netns"):
        SandboxManager({"sandbox": {"jail": "env"}}, prepared=1)
    for wrong in (-1, 65, 1.5, True, "2"):
        with refused("prepared"):
            SandboxManager({"sandbox": {}}, prepared=wrong)  # type: ignore[arg-type]
