"""A harness as a process on a socket pair, without a container: an ordinary user's, as it is in one."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from exeat.container.harness.client import HarnessClient
from exeat.container.harness.shipped import read_harness


def _has_user(uid: int) -> bool:
    """Whether root here can become this user: not in every user namespace."""
    ranges = [[*map(int, line.split())] for line in Path("/proc/self/uid_map").read_text().splitlines()]
    return os.getuid() == 0 and any(start <= uid < start + count for start, _, count in ranges)


def _is_open(path: str) -> bool:
    """Whether every user may start this program."""
    return all(each.stat().st_mode & 0o001 for each in (Path(path), *Path(path).parents))


# No one else's, whatever a tool sends to all processes of its user; None if there is none.
OWN_USER = 2_000_000 + os.getpid() if _has_user(2_000_000 + os.getpid()) else None
_EXECUTABLE = os.path.realpath(sys.executable)
_PYTHON = _EXECUTABLE if OWN_USER is None or _is_open(_EXECUTABLE) else "/usr/bin/python3"


@dataclass(frozen=True, slots=True)
class Started:
    """A harness that runs, its client, and the folder that it has for its files."""

    client: HarnessClient
    process: subprocess.Popen[bytes]
    scratch: Path


@asynccontextmanager
async def start_harness(
    source: str, *, is_async: tuple[str, ...] = (), changed: Mapping[str, str] = MappingProxyType({})
) -> AsyncIterator[Started]:
    """A harness whose tools are the functions of `source`. Root runs it as another user, with no privilege.

    `changed`: lines of the harness that are others here, so that it finds another kernel, or waits less.
    """
    folder = Path(tempfile.mkdtemp(prefix="harness-"))
    process: subprocess.Popen[bytes] | None = None
    ours, theirs = socket.socketpair()
    try:
        scratch = write_image(folder, source, is_async, changed)
        process = launch(folder, scratch, theirs.fileno(), theirs.fileno())
        theirs.close()
        client = HarnessClient(ours)
        try:
            await client.ready()
            yield Started(client, process, scratch)
        finally:
            await client.aclose()
    finally:
        theirs.close()
        ours.close()
        if process is not None:
            await asyncio.to_thread(_end, process)
        await asyncio.to_thread(_remove, folder)


def write_image(
    folder: Path, source: str, is_async: tuple[str, ...] = (), changed: Mapping[str, str] = MappingProxyType({})
) -> Path:
    """What an image has: harness, tools, manifest. The folder for what the harness writes."""
    tools, scratch = folder / "tools", folder / "scratch"
    tools.mkdir()
    scratch.mkdir()
    text = textwrap.dedent(source)
    (tools / "tool.py").write_text(text)
    code = read_harness().decode()
    for line, other in changed.items():
        assert code.count(line) == 1
        code = code.replace(line, other)
    (folder / "harness.py").write_text(code)
    names = [line.split("def ")[1].split("(")[0] for line in text.splitlines() if line.startswith(("def ", "async "))]
    entries = {name: {"file": "tool.py", "function": name, "is_async": name in is_async} for name in names}
    (tools / "manifest.json").write_text(json.dumps({"version": 1, "tools": entries}))
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    if OWN_USER is not None:
        os.chown(scratch, OWN_USER, OWN_USER)
    return scratch


def launch(folder: Path, scratch: Path, stdin: int, stdout: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [_PYTHON, "-I", "-B", str(folder / "harness.py")],
        stdin=stdin,
        stdout=stdout,
        env={"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "TMPDIR": str(scratch)},
        cwd="/",
        user=OWN_USER,
        group=OWN_USER,
        extra_groups=None if OWN_USER is None else [],
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
