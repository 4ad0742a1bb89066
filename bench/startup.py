"""The row `startup`: what it takes to start a command that does nothing, in exeat's jail, in srt's, and in none."""

import json
import os
import select
import shlex
import subprocess
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.install import need_npm_package, need_program, say
from bench.peers import SandboxRuntime
from bench.process import ROOT, WORK, BenchError, stop
from bench.rows import Effort, Results, Start, rotated

PYTHON = str(ROOT / ".venv" / "bin" / "python")
EXEAT, SRT, BARE, JAIL = "exeat", "srt", "python", "exeat's jail alone"
ALLOWED = "x.test"
# srt's built-in defaults, and one host more.
SRT_SETTINGS = {
    "network": {"allowedDomains": [ALLOWED], "deniedDomains": []},
    "filesystem": {"denyRead": [], "allowRead": [], "allowWrite": [], "denyWrite": []},
}
PATIENCE_S = 30.0

# What the report shows for each; the paths differ.
SHOWN = {
    EXEAT: f"exeat run --allow {ALLOWED} -- true",
    SRT: "srt --settings FILE true",
    BARE: "python -c pass",
    JAIL: "python -m bench.building",
}


@dataclass(frozen=True, slots=True)
class Program:
    name: str
    argv: Sequence[str]
    times_itself: bool = False


def run_command(program: str | None) -> list[str]:
    """`exeat run`, of the build whose `exeat serve` was given, or else of the one in .venv."""
    argv = shlex.split(program) if program else [str(ROOT / ".venv" / "bin" / "exeat"), "serve"]
    if argv[-1] != "serve":
        raise BenchError("the command given with --exeat does not end in `serve`, so that of `run` is not known")
    return [*argv[:-1], "run"]


def _srt(home: Path) -> Program:
    for program, package in (("bwrap", "bubblewrap"), ("socat", "socat"), ("rg", "ripgrep")):
        need_program(program, package)
    need_npm_package(SandboxRuntime.package)
    settings = home / "srt.json"
    settings.write_text(json.dumps(SRT_SETTINGS))
    return Program(SRT, [str(WORK / "npm" / "node_modules" / ".bin" / "srt"), "--settings", str(settings), "true"])


def _start(program: Program, log: Path) -> Start:
    """Run it to its end. CPU time is its own and that of all children that were waited for, as wait4(2) has it."""
    with log.open("wb") as sink:
        began = time.perf_counter()
        process = subprocess.Popen(
            program.argv,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            start_new_session=True,
        )
    try:
        with closing(os.fdopen(os.pidfd_open(process.pid))) as ended:
            if not select.select([ended], [], [], PATIENCE_S)[0]:
                raise BenchError(f"did not end in {PATIENCE_S:.0f} s")
        _, status, used = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
    finally:
        if process.returncode is None:
            stop(process)
    said = log.read_text(errors="replace").strip().splitlines() or ["no output"]
    if process.returncode != 0:
        raise BenchError(f"exit status {process.returncode}: {said[-1][:200].replace(str(ROOT), '.')}")
    if program.times_itself:
        return Start(**json.loads(said[-1]))
    return Start(wall_s * 1e3, (used.ru_utime + used.ru_stime) * 1e3)


def measure_startup(exeat: str | None, effort: Effort, results: Results, *, with_srt: bool) -> None:
    """All take turns, and the first turn of each is not counted: it fills caches."""
    say(f"start-up, {effort.starts} times each")
    with TemporaryDirectory(prefix="run-", dir=WORK) as name:
        home = Path(name)
        programs = [Program(BARE, [PYTHON, "-c", "pass"]), Program(JAIL, [PYTHON, "-m", "bench.building"], True)]
        try:
            run = [*run_command(exeat), "--allow", ALLOWED]
            programs.append(Program(EXEAT, [*run, "--", "true"]))
        except BenchError as error:
            results.failures["startup", EXEAT] = str(error)
        try:
            if with_srt:
                programs.append(_srt(home))
        except BenchError as error:
            results.failures["startup", SRT] = str(error)
        for number in range(effort.starts + 1):
            for program in rotated(programs, number):
                if ("startup", program.name) in results.failures:
                    continue
                try:
                    seen = _start(program, home / "start.log")
                except BenchError as error:
                    results.failures["startup", program.name] = str(error)
                    say(f"  startup    {program.name:24} FAILED: {error}")
                    continue
                if number:
                    results.starts.setdefault(program.name, []).append(seen)
    for name, starts in results.starts.items():
        say(f"  startup    {name:24} {min(s.wall_ms for s in starts):7.1f} ms at best")
