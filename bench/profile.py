"""`python -m bench.profile ROW`: where the CPU of a row goes. Sampled Python and C functions, and counted system calls.

The samples are py-spy's (from PyPI, with native frames: uvloop, hashing and JSON show by name), the counts are
strace's. Neither needs hardware counters. Both slow the gateway down, so they say what costs, not how much: that is
what `python -m bench` is for.
"""

import argparse
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from bench import load, origin
from bench.install import need_program, need_python_package
from bench.load import Load, Way, measure
from bench.peers import Exeat, open_peer
from bench.process import WORK, BenchError, raise_descriptor_limit
from bench.rows import ROWS, Effort, Row

_SAMPLES_PER_S = 250
_COUNTED_S = 2.0
_SHOWN = 45
_CALLS = re.compile(r"^ *[0-9.]+ +[0-9.]+ +[0-9]+ +(\d+) +(?:\d+ +)?(\w+)$", re.MULTILINE)


@contextmanager
def _attached(argv: list[str]) -> Iterator[None]:
    """A tool that watches a process until it is told to stop, and then writes what it has seen."""
    tool = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        time.sleep(0.5)
        yield
    finally:
        tool.send_signal(signal.SIGINT)
        try:
            tool.wait(60)
        except subprocess.TimeoutExpired:
            tool.kill()
            tool.wait()


def _load(row: Row, seconds: float) -> Load:
    return Effort(1, seconds, 0, 1_000_000_000, 1).load(row)


def sample(row: Row, seconds: float, program: str | None, *, native: bool) -> tuple[Counter[str], Counter[str], int]:
    """Samples by function, itself and with all that it called, and how many there were."""
    raw = WORK / "profile.raw"
    raw.unlink(missing_ok=True)
    spy = [str(need_python_package("py-spy", "py-spy")), "record", "--format", "raw", "-o", str(raw)]
    spy += ["--rate", str(_SAMPLES_PER_S), "--duration", str(int(seconds + 60)), *(("--native",) if native else ())]
    with open_peer(Exeat(program), tunnels=True) as (port, pid):
        way = Way(f"127.0.0.1:{port}")
        with _attached([*spy, "--pid", str(pid)]):
            measure(_load(row, seconds), way, lambda _: 0.0)
    return read_stacks(raw.read_text())


def read_stacks(text: str) -> tuple[Counter[str], Counter[str], int]:
    """py-spy's raw format: frames with semicolons between, innermost last, and how often they were seen."""
    own: Counter[str] = Counter()
    whole: Counter[str] = Counter()
    for line in text.splitlines():
        stack, _, count = line.rpartition(" ")
        frames = [re.sub(r":\d+\)$", ")", frame) for frame in stack.split(";")]
        own[frames[-1]] += int(count)
        for frame in set(frames):
            whole[frame] += int(count)
    return own, whole, sum(own.values())


def count_calls(row: Row, program: str | None) -> tuple[Counter[str], int]:
    """System calls of the gateway, and the requests that they were made for."""
    out = WORK / "profile.calls"
    with open_peer(Exeat(program), tunnels=True) as (port, pid):
        way = Way(f"127.0.0.1:{port}")
        with _attached([need_program("strace", "strace"), "-f", "-c", "-o", str(out), "-p", str(pid)]):
            seen = measure(replace(_load(row, _COUNTED_S), warm_s=0.0), way, lambda _: 0.0)
    return read_calls(out.read_text()), seen.requests


def read_calls(text: str) -> Counter[str]:
    return Counter({name: int(calls) for calls, name in _CALLS.findall(text) if name != "total"})


def _print_samples(title: str, counts: Counter[str], total: int) -> None:
    print(f"\n{title}")
    for name, count in counts.most_common(_SHOWN):
        print(f"  {100 * count / total:5.1f} %  {name}")


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.profile", description=__doc__)
    known = {row.name: row for row in ROWS}
    parser.add_argument("row", choices=known)
    parser.add_argument("--seconds", type=float, default=8.0, help="length of the sampled phase (default: 8)")
    parser.add_argument("--python", action="store_true", help="functions of Python only")
    parser.add_argument("--calls", action="store_true", help="count system calls only")
    parser.add_argument("--exeat", metavar="COMMAND", help="another build of `exeat serve`")
    options = parser.parse_args(argv)
    row = known[options.row]
    raise_descriptor_limit()
    WORK.mkdir(exist_ok=True)
    try:
        load.build()
        with origin.open_origin(1_000_000_000):
            if not options.calls:
                own, whole, total = sample(row, options.seconds, options.exeat, native=not options.python)
                _print_samples("In the function itself", own, total)
                _print_samples("With all that it calls", whole, total)
            calls, requests = count_calls(row, options.exeat)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    print(f"\nSystem calls for each of {requests} requests")
    for name, count in calls.most_common():
        if count * 100 >= requests:
            print(f"  {count / requests:6.2f}  {name}")
    print(f"  {calls.total() / requests:6.2f}  together")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
