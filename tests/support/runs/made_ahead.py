"""Jails made ahead: in the test's own process, and in a program that runs as another user or in a namespace."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

from exeat.embed.sandbox_manager import SandboxManager
from tests.support.runs.running import as_user, environment

_PROGRAM = """
import asyncio, json, sys
from exeat.embed.sandbox_manager import SandboxManager
from exeat.embed.stock import Stock

used, take = [], Stock.take

async def noting(self, *arguments):
    process = await take(self, *arguments)
    used.append(process is not None)
    return process

Stock.take = noting

async def main():
    async with SandboxManager({"sandbox": json.loads(sys.argv[1])}, prepared=1) as manager:
        while True:
            waiting = manager._stock._waiting
            print(json.dumps(bool(waiting) and all(each.stands for each in waiting)), flush=True)
            line = sys.stdin.readline()
            if not line:
                return
            done = await manager.run(json.loads(line))
            print(json.dumps([used[-1], done.text, done.stderr.decode()]), flush=True)
            await asyncio.sleep(0)  # another is asked for when whoever waited has had a turn
            await manager._stock.stand()

asyncio.run(main())
"""


def secret_file(folder: Path, variable: str = "API_KEY") -> str:
    file = folder / "secrets.toml"
    file.write_text(f'[API_KEY]\nenv = "{variable}"\nhosts = ["api.test"]\n')
    file.chmod(0o600)
    return str(file)


def run_all(work: Callable[[SandboxManager], Awaitable[None]], prepared: int = 1, **sandbox: Any) -> None:
    async def main() -> None:
        async with SandboxManager({"sandbox": sandbox}, prepared=prepared) as manager:
            await work(manager)

    asyncio.run(main())


async def standing(manager: SandboxManager) -> None:
    """Until as many stand as are wanted."""
    assert manager._stock is not None
    manager._stock.fill(manager.environ())
    await manager._stock.stand()


class Ran(NamedTuple):
    is_used: bool
    text: str
    errors: str


class Ahead:
    """A program that has a jail made ahead at any time."""

    def __init__(self, answers: IO[str], words: IO[str], pid: int) -> None:
        self._answers, self._words, self.pid = answers, words, pid

    def stands(self) -> bool:
        return json.loads(self._answers.readline()) is True

    def run(self, *command: str) -> Ran:
        self._words.write(json.dumps(command) + "\n")
        self._words.flush()
        return Ran(*json.loads(self._answers.readline()))


def open_interpreter() -> str:
    """For a shell in a mount namespace of its own: let others have the files of this Python, where it lies in a folder
    that is closed to them. They could start it all the same, by `setpriv`, but not again.
    """
    base = Path(sys.base_prefix)
    closed = [folder for folder in reversed(base.parents) if not folder.stat().st_mode & 0o001]
    if not closed:
        return ""
    return f"""
mount -t tmpfs -o mode=755 exeat-test /mnt
mkdir -p /mnt/interpreter
mount --bind {base} /mnt/interpreter
mount -t tmpfs -o mode=755 exeat-test {closed[0]}
mkdir -p {base}
mount --move /mnt/interpreter {base}
"""


@contextmanager
def ahead(
    sandbox: dict[str, Any], folder: Path, *, uid: int | None = None, before: Sequence[str] = ()
) -> Iterator[Ahead]:
    """`folder`: where it works; its home directory is above. `before`: a command to be run under."""
    if uid is not None and not before and (prelude := open_interpreter()):
        script = f'set -e\n{prelude}\ncd "$0"\nexec "$@"'
        before = ("unshare", "--mount", "--propagation", "private", "sh", "-c", script, str(folder))
    argv = [*before, *as_user(uid), sys.executable, "-c", _PROGRAM, json.dumps(sandbox)]
    with subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=folder if not before else "/",
        env=environment(HOME=str(folder.parent)),
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            yield Ahead(child.stdout, child.stdin, child.pid)
        finally:
            child.stdin.close()
            try:
                child.wait(20)
            finally:
                child.kill()
