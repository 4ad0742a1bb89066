"""`python -m bench.embedding`: what a program waits for a command that does nothing, as a section of bench/RESULTS.md.

One program for each, which runs one command when it is told to, so that all take turns. srt has no interface for
Python: its program is started for each command.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.install import need_python_package, say
from bench.process import HERE, WORK, BenchError, stop
from bench.report import machine
from bench.rows import rotated
from bench.sections import EMBEDDING, put_in
from bench.startup import ALLOWED, PYTHON, _srt, _start

AHEAD, WITH_SECRETS = "exeat, jail made ahead", "exeat, jail made ahead, two secrets"
FORKED, BY_ITSELF, SANDLOCK, SRT = "exeat, from the second run on", "exeat, the first run", "sandlock", "srt"
TARGETS_MS = {FORKED: 40.0, AHEAD: 10.0}
PREPARED = 2
PAUSE_S = 0.3  # a jail is made again in less
SHOWN = {
    AHEAD: 'await manager.run(["true"])',
    WITH_SECRETS: 'await manager.run(["true"])',
    FORKED: 'await manager.run(["true"])',
    BY_ITSELF: 'await manager.run(["true"])',
    SANDLOCK: 'Sandbox(...).run(["true"])',
    SRT: "srt --settings FILE true",
}

_EXEAT = """
import asyncio, sys, time
from exeat.embed.sandbox_manager import SandboxManager
CONFIGURATION = {"sandbox": {"network": {"allowed_domains": [sys.argv[1]]}}}
HOW, PREPARED, PAUSE_S = sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
if len(sys.argv) > 5:
    CONFIGURATION["sandbox"]["secrets"] = sys.argv[5]
async def main():
    manager = SandboxManager(CONFIGURATION, prepared=PREPARED)
    if HOW != "first":
        await manager.start()
    for line in sys.stdin:
        if HOW == "first":
            manager = SandboxManager(CONFIGURATION)
        began = time.perf_counter()
        done = await manager.run(["true"])
        took_ms = (time.perf_counter() - began) * 1e3
        await asyncio.sleep(PAUSE_S)
        print(took_ms if done.returncode == 0 else -1, flush=True)
    await manager.aclose()
asyncio.run(main())
"""
_SANDLOCK = """
import sys, time
from sandlock import Sandbox
folders = ["/usr", "/lib", "/lib64", "/bin", "/etc", "/dev"]
for line in sys.stdin:
    began = time.perf_counter()
    done = Sandbox(fs_readable=folders).run(["true"])
    print((time.perf_counter() - began) * 1e3 if done.exit_code == 0 else -1, flush=True)
"""


class Contender:
    """A program that has what it needs loaded, and waits for a line."""

    def __init__(self, argv: list[str], folder: Path) -> None:
        self._process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder, start_new_session=True
        )

    def run(self) -> float:
        """Milliseconds."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(b"\n")
            self._process.stdin.flush()
            took_ms = float(self._process.stdout.readline() or -1)
        except (OSError, ValueError) as error:
            raise BenchError(f"it ended: {error}") from None
        if took_ms < 0:
            raise BenchError("the command did not run")
        return took_ms

    def close(self) -> None:
        stop(self._process)


class _Srt:
    def __init__(self, home: Path) -> None:
        self._program, self._log = _srt(home), home / "srt.log"

    def run(self) -> float:
        return _start(self._program, self._log).wall_ms

    def close(self) -> None:
        pass


def measure(count: int) -> tuple[dict[str, list[float]], dict[str, str]]:
    """All in turns; the first of each fills caches. Returns what was measured, and why the rest was not."""
    found: dict[str, list[float]] = {}
    failures: dict[str, str] = {}
    with TemporaryDirectory(prefix="run-", dir=WORK) as name, ExitStack() as stack:
        home = Path(name)
        contenders: dict[str, Contender | _Srt] = {}
        for who, begin in (
            (AHEAD, lambda: _open_exeat(home, "ahead")),
            (WITH_SECRETS, lambda: _open_exeat(home, "ahead", str(_secrets(home)))),
            (FORKED, lambda: _open_exeat(home, "forked")),
            (BY_ITSELF, lambda: _open_exeat(home, "first")),
            (SANDLOCK, lambda: _open_sandlock(home)),
            (SRT, lambda: _Srt(home)),
        ):
            try:
                contenders[who] = begin()
                stack.callback(contenders[who].close)
            except BenchError as error:
                failures[who] = str(error)
        for number in range(count + 1):
            for who, contender in rotated(list(contenders.items()), number):
                if who in failures:
                    continue
                try:
                    took_ms = contender.run()
                except BenchError as error:
                    failures[who] = str(error)
                    continue
                if number:
                    found.setdefault(who, []).append(took_ms)
    return found, failures


def _open_exeat(home: Path, how: str, *secrets: str) -> Contender:
    prepared, pause = (PREPARED, PAUSE_S) if how == "ahead" else (0, 0)
    return Contender([PYTHON, "-c", _EXEAT, ALLOWED, how, str(prepared), str(pause), *secrets], home)


def _secrets(home: Path) -> Path:
    file = home / "secrets.json"
    specs = {name: {"value": f"{name.lower()}-0123456789abcdef", "hosts": [f"{name.lower()}.test"]} for name in "AB"}
    file.write_text(json.dumps(specs))
    file.chmod(0o600)
    return file


def _open_sandlock(home: Path) -> Contender:
    program = need_python_package("sandlock", "python")
    if subprocess.run([program, "-c", "import sandlock"], check=False, capture_output=True).returncode:
        raise BenchError("sandlock cannot be loaded")
    return Contender([str(program), "-c", _SANDLOCK, ALLOWED], home)


def section(found: dict[str, list[float]], failures: dict[str, str], count: int) -> Iterator[str]:
    who = "root" if os.geteuid() == 0 else "an ordinary user"
    yield EMBEDDING
    yield ""
    yield f"A program runs a command that does nothing, {count} times each, in turns, as {who}. {machine()}"
    yield ""
    yield "| | call | median ms | spread |"
    yield "|---|---|---:|---:|"
    for name, shown in SHOWN.items():
        if name in failures:
            yield f"| {name} | `{shown}` | failed: {failures[name]} | |"
        elif name in found:
            seen = sorted(found[name])
            yield f"| {name} | `{shown}` | {statistics.median(seen):.1f} | {seen[0]:.1f} to {seen[-1]:.1f} |"
    yield ""
    for who, limit_ms in TARGETS_MS.items():
        if who in found:
            median = statistics.median(found[who])
            met = "met" if median <= limit_ms else "missed"
            yield f"Target, {who.removeprefix('exeat, ')}: at most {limit_ms:.0f} ms. {median:.1f} ms: {met}."
            yield ""
    yield f"Made ahead: `SandboxManager(..., prepared={PREPARED})`, and a pause in which another is made."
    yield "exeat and srt have a proxy of their own listening for each command; sandlock has none, and no namespaces:"
    yield "it decides about system calls of the command."


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.embedding", description=__doc__)
    parser.add_argument("--count", type=int, default=30, help="runs of each (default: 30)")
    parser.add_argument("--out", type=Path, default=HERE / "RESULTS.md", help="default: bench/RESULTS.md")
    options = parser.parse_args(argv)
    WORK.mkdir(exist_ok=True)
    found, failures = measure(options.count)
    text = "\n".join(section(found, failures, options.count))
    put_in(options.out, EMBEDDING, text)
    (WORK / "embedding.json").write_text(json.dumps(found))
    say(text)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
