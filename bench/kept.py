"""The row `kept`: what people wait for who keep sandboxes. How long lists, changes and logs take."""

import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.install import say
from bench.origin import SMALL_PATH
from bench.process import ROOT, WORK, BenchError, stop
from bench.rows import Effort, Results
from bench.startup import PYTHON, run_command

LIST, LOG, LOG_LARGE, BARE = "exeat proxy list", "exeat proxy log", "exeat proxy log, 1 GB", "python -c pass"
ALLOW, IN_FORCE, LOAD = "exeat proxy allow", "a change in force", "10,000 rules"
LARGE_BYTES = 1_000_000_000
RULES = 10_000
NAME = "bench"

# A program in the sandbox that says, again and again, whether it got through.
PROBE = """
import http.client, sys, time
for line in sys.stdin:
    conn = http.client.HTTPConnection("127.0.0.1", int(sys.argv[2]), timeout=10)
    conn.request("GET", f"http://{line.strip()}:{sys.argv[1]}{sys.argv[3]}")
    print(conn.getresponse().status, time.clock_gettime(time.CLOCK_MONOTONIC), flush=True)
"""


def measure_kept(exeat: str | None, effort: Effort, results: Results, *, port: int) -> None:
    """Every figure in milliseconds. `port`: a web server on loopback."""
    say(f"sandboxes that are kept, {effort.starts} times each")
    program = [*run_command(exeat)[:-1]]
    with TemporaryDirectory(prefix="kept-", dir=WORK) as name:
        home = Path(name) / "home"
        environ = {key: value for key, value in os.environ.items() if not key.startswith(("EXEAT_", "PROXY_"))}
        environ["EXEAT_HOME"] = str(home)
        try:
            _measure_commands(program, environ, home, effort, results)
            _measure_rules(Path(name), effort, results)
            _measure_changes(program, environ, effort, results, port)
        except (BenchError, OSError, subprocess.SubprocessError) as error:
            results.failures["kept", "exeat"] = str(error)
            say(f"  kept FAILED: {error}")
    for what, times in results.kept.items():
        say(f"  kept       {what:24} {statistics.median(times):7.1f} ms")


def _measure_commands(
    program: list[str], environ: dict[str, str], home: Path, effort: Effort, results: Results
) -> None:
    """Wall time of commands that print something, in turns with an interpreter that does nothing."""
    _run([*program, "run", "--quiet", "--new", "--name", NAME, "--", "true"], environ)
    _run([*program, "run", "--quiet", "--new", "--name", "large", "--", "true"], environ)
    _write_log(home / "sandboxes" / NAME / "audit.jsonl", 200_000)
    _write_log(home / "sandboxes" / "large" / "audit.jsonl", LARGE_BYTES)
    turns: dict[str, list[str]] = {
        BARE: [PYTHON, "-c", "pass"],
        LIST: [*program, "proxy", "list", "--name", NAME],
        LOG: [*program, "proxy", "log", "--name", NAME],
        LOG_LARGE: [*program, "proxy", "log", "--name", "large"],
    }
    for number in range(effort.starts + 1):
        for what, argv in turns.items():
            began = time.perf_counter()
            _run(argv, environ)
            took_ms = (time.perf_counter() - began) * 1e3
            if number:  # the first turn fills caches
                results.kept.setdefault(what, []).append(took_ms)
    (home / "sandboxes" / "large" / "audit.jsonl").unlink()


def _write_log(path: Path, size: int) -> None:
    """Lines such as the gateway writes. No one checks their chain here."""
    record = {
        "chain": "f0123456789abcdef", "time": "2026-01-01T00:00:00.000000Z", "event": "decision", "conn": 1, "req": 1,
        "sandbox": NAME, "jail": "netns", "protocol": "connect", "method": "CONNECT", "host": "evil.test", "port": 443,
        "address": "", "verdict": "deny", "rule": "", "reason": "not-listed", "secrets": [], "note": "", "status": 403,
        "sent": 0, "received": 0, "duration_ms": 0.2, "policy": "0" * 32, "hash": "0" * 64,
    }  # fmt: skip
    rest = json.dumps(record, separators=(",", ":"))[1:]
    with path.open("w") as file:
        number = 0
        while file.tell() < size:
            file.write("".join(f'{{"seq":{number + each},{rest}\n' for each in range(1, 1001)))
            number += 1000


def _measure_rules(folder: Path, effort: Effort, results: Results) -> None:
    """CPU time to make a policy of a list, in a fresh process each time, without loading code."""
    lines = [f"{'.' if number % 2 else ''}host{number}.domain{number % 997}.test" for number in range(RULES)]
    (folder / "list.txt").write_text("\n".join(lines) + "\n")
    argv = [PYTHON, "-m", "bench.lists", "read", str(folder / "list.txt"), str(RULES)]
    for _ in range(max(effort.starts // 2, 1)):
        results.kept.setdefault(LOAD, []).append(float(_run(argv, None)))


def _measure_changes(program: list[str], environ: dict[str, str], effort: Effort, results: Results, port: int) -> None:
    """From the moment a list is changed until a connection gets through, and the whole command that does it."""
    names = [f"name{number}.test" for number in range(effort.starts)]
    mapped = [word for name in names for word in ("--add-host", f"{name}:127.0.0.1")]
    with _probe([*program, "run", "--quiet", "--name", NAME, *mapped, "--jail", "netns"], environ, port) as ask:
        for name in names:
            if ask(name) != 403:
                raise BenchError(f"{name} is not refused before it is allowed")
            began = time.perf_counter()
            _run([*program, "proxy", "allow", f"={name}:{port}", "--name", NAME], environ)
            results.kept.setdefault(ALLOW, []).append((time.perf_counter() - began) * 1e3)
            if ask(name) != 200:
                raise BenchError(f"{name} is not allowed though the answer said so")
        block = [PYTHON, "-m", "bench.lists", "block", NAME]
        said = _run([*block, *(f"={name}:{port}" for name in names)], environ)
        results.kept[IN_FORCE] = [float(line) for line in said.split()]
        if any(ask(name) != 403 for name in names):
            raise BenchError("what was blocked is not refused")


@contextmanager
def _probe(run: list[str], environ: dict[str, str], port: int) -> Iterator[Callable[[str], int]]:
    argv = [*run, "--", PYTHON, "-c", PROBE, str(port), "61080", SMALL_PATH]
    process = subprocess.Popen(argv, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
    assert process.stdin is not None
    assert process.stdout is not None
    stdin, stdout = process.stdin, process.stdout

    def ask(name: str) -> int:
        stdin.write(f"{name}\n".encode())
        stdin.flush()
        return int(stdout.readline().split()[0])

    try:
        yield ask
        stdin.close()
        process.wait(30)
    finally:
        stop(process)


def _run(argv: list[str], environ: dict[str, str] | None) -> str:
    done = subprocess.run(argv, env=environ, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise BenchError(f"{argv[-4:]}: exit status {done.returncode}: {done.stderr[-200:]}")
    return done.stdout
