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

from exeat.container.harness import harness
from exeat.container.harness.client import HarnessClient

# No one else's, whatever a tool sends to all processes of its user. And there: a Python that this user may start.
OWN_USER = 2_000_000 + os.getpid()
_PYTHON = "/usr/bin/python3" if os.getuid() == 0 else os.path.realpath(sys.executable)


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
    code = Path(harness.__file__).read_text()
    for line, other in changed.items():
        assert code.count(line) == 1
        code = code.replace(line, other)
    (folder / "harness.py").write_text(code)
    names = [line.split("def ")[1].split("(")[0] for line in text.splitlines() if line.startswith(("def ", "async "))]
    entries = {name: {"file": "tool.py", "function": name, "is_async": name in is_async} for name in names}
    (tools / "manifest.json").write_text(json.dumps({"version": 1, "tools": entries}))
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    if os.getuid() == 0:
        os.chown(scratch, OWN_USER, OWN_USER)
    return scratch


def launch(folder: Path, scratch: Path, stdin: int, stdout: int) -> subprocess.Popen[bytes]:
    is_root = os.getuid() == 0
    return subprocess.Popen(
        [_PYTHON, "-I", "-B", str(folder / "harness.py")],
        stdin=stdin,
        stdout=stdout,
        env={"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "TMPDIR": str(scratch)},
        cwd="/",
        user=OWN_USER if is_root else None,
        group=OWN_USER if is_root else None,
        extra_groups=[] if is_root else None,
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
