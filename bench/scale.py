"""`python -m bench.scale`: many sandboxes on one gateway, and several workers; a section of bench/RESULTS.md.

Each sandbox is a client of `exeat serve --clients` with an address, a credential and a policy of its own, in a file of
its own. A hundred of them are busy, however many there are.
"""

import argparse
import base64
import json
import os
import resource
import shlex
import socket
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import load, origin
from bench.cpu import cpu_s, rss_mb
from bench.figures import figures
from bench.install import say
from bench.load import Load, Sample, Way, measure
from bench.origin import LOCAL, PLAIN_PORT
from bench.process import HERE, ROOT, WORK, BenchError, free_port, running
from bench.report import machine
from bench.rows import Effort, Results, Row, rotated
from bench.sections import SCALE, put_in
from bench.tables import row_table

COUNTS = (100, 1_000, 10_000)
BUSY = 100
CHANGES = 20
_IDLE_S = 5.0
_ADDRESSES = (127 << 24) + (64 << 16) + 1  # as in load.c
_ROW = Row("scale", f"Plain HTTP, connections kept, by number of sandboxes, {BUSY} of them busy", "plain", BUSY)
_WORKERS = Row("workers", "Plain HTTP, connections kept, by number of workers", "plain")
_EXEAT = str(ROOT / ".venv" / "bin" / "exeat")


@dataclass(slots=True)
class Changes:
    """What it takes to put another policy in force for one sandbox."""

    wall_ms: list[float] = field(default_factory=list)
    cpu_ms: float = 0.0


@dataclass(slots=True)
class Crowd:
    """So many sandboxes on one gateway."""

    memory_kb: float = 0.0  # for each
    idle_cpu: float = 0.0  # of one core
    start_s: float = 0.0
    changes: Changes = field(default_factory=Changes)


def _address(number: int) -> str:
    return socket.inet_ntoa((_ADDRESSES + number).to_bytes(4, "big"))


def _client(number: int, *more: str) -> str:
    """Ten rules, of which one is needed."""
    rules = [f"host{each}.sandbox{number}.example.net" for each in range(9)]
    entry = {
        "networks": [f"{_address(number)}/32"],
        "credential": f"credential-of-client-{number:05}",
        "allow": [*rules, f"{LOCAL.host}:{PLAIN_PORT}", *more],
    }
    return json.dumps({"clients": {f"c{number:05}": entry}})


def _put(folder: Path, number: int, text: str) -> None:
    """As a careful program does."""
    draft = folder / f".c{number:05}.draft"
    draft.write_text(text)
    draft.replace(folder / f"c{number:05}.json")


@contextmanager
def _serving(count: int) -> Iterator[tuple[int, int, Path, float]]:
    """A gateway for so many clients: its port and pid, their folder, and how long it took to start."""
    with TemporaryDirectory(prefix="run-", dir=WORK) as name:
        folder = Path(name) / "clients"
        folder.mkdir()
        for number in range(count):
            _put(folder, number, _client(number))
        port, audit = free_port(), Path(name) / "audit.jsonl"
        argv = [_EXEAT, "serve", "--clients", str(folder), "--port", str(port), "--audit", str(audit)]
        began = time.monotonic()
        with running(argv, port, WORK / "exeat.log", patience_s=120) as pid:
            yield port, pid, Path(name), time.monotonic() - began


def _through(count: int, work: Load) -> Sample:
    os.environ["LOAD_CLIENTS"] = str(count)
    try:
        with _serving(count) as (port, pid, _, _):
            return measure(work, Way(f"127.0.0.1:{port}"), lambda _: cpu_s(pid))
    finally:
        del os.environ["LOAD_CLIENTS"]


def _look_at_idle(count: int, crowd: Crowd, none_kb: float) -> None:
    with _serving(count) as (port, pid, folder, took_s):
        crowd.start_s = took_s
        time.sleep(1)
        before = cpu_s(pid)
        time.sleep(_IDLE_S)
        crowd.idle_cpu = (cpu_s(pid) - before) / _IDLE_S
        crowd.memory_kb = (rss_mb(pid) * 1e3 - none_kb) / count
        _change_one(count, port, pid, folder, crowd)


def _change_one(count: int, port: int, pid: int, folder: Path, crowd: Crowd) -> None:
    """A place is allowed and forbidden by turns, for one sandbox in the middle."""
    number = count // 2
    key = base64.b64encode(f"c{number:05}:credential-of-client-{number:05}".encode()).decode()
    place = f"127.0.0.1:{free_port()}"  # nothing is there: allowed means 502
    request = f"GET http://{place}/ HTTP/1.1\r\nHost: {place}\r\nProxy-Authorization: Basic {key}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", port), 10, (_address(number), 0)) as conn:

        def status() -> int:
            conn.sendall(request)
            answer = b""
            while b"\r\n\r\n" not in answer:
                answer += conn.recv(65536)
            head, _, body = answer.partition(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].split()[0])
            while len(body) < length:
                body += conn.recv(65536)
            return int(answer.split(b" ", 2)[1])

        used = 0.0
        for turn in range(CHANGES):
            wanted = 403 if turn % 2 else 502
            text = _client(number) if turn % 2 else _client(number, place)
            before, began = cpu_s(pid), time.monotonic()
            _put(folder / "clients", number, text)
            while status() != wanted:
                if time.monotonic() - began > 10:
                    raise BenchError("a changed policy was not in force within 10 s")
            crowd.changes.wall_ms.append((time.monotonic() - began) * 1e3)
            used += cpu_s(pid) - before
        crowd.changes.cpu_ms = used / CHANGES * 1e3


def _with_workers(count: int, work: Load) -> Sample:
    with TemporaryDirectory(prefix="run-", dir=WORK) as name:
        port = free_port()
        argv = [_EXEAT, "serve", "--port", str(port), "--audit", f"{name}/audit.jsonl", "--workers", str(count)]
        with running([*argv, "--allow", LOCAL.place(over_tls=False)], port, WORK / "exeat.log") as pid:
            return measure(work, Way(f"127.0.0.1:{port}"), lambda _: cpu_s(pid))


def measure_crowds(counts: Sequence[int], effort: Effort, results: Results) -> dict[int, Crowd]:
    crowds = {count: Crowd() for count in counts}
    with _serving(1) as (_, pid, _, _):
        none_kb = rss_mb(pid) * 1e3
    for count, crowd in crowds.items():
        say(f"{count:,} sandboxes")
        _look_at_idle(count, crowd, none_kb)
        say(f"  {crowd}")
    for number in range(effort.rounds):
        for count in rotated(counts, number):
            results.take(_ROW.name, f"{count:,} sandboxes", partial(_through, count, effort.load(_ROW)))
    return crowds


def measure_workers(effort: Effort, results: Results) -> None:
    for number in range(effort.more_rounds):
        for count in rotated((1, 2), number):
            name = f"{count} worker{'' if count == 1 else 's'}"
            results.take(_WORKERS.name, name, partial(_with_workers, count, effort.load(_WORKERS)))


def crowd_rows(crowds: dict[int, Crowd], results: Results) -> list[str]:
    few, most = min(crowds), max(crowds)
    rows = []
    costs = {count: figures(results, _ROW.name, f"{count:,} sandboxes") for count in (few, most)}
    least, highest = costs[few], costs[most]
    if least is not None and highest is not None:
        more = highest.cost / least.cost - 1
        what = f"CPU per request from {few:,} to {most:,} sandboxes, {BUSY} busy: flat within 15 %"
        rows.append(f"| {what} | {more:+.0%} | {'met' if abs(more) <= 0.15 else 'missed'} |")
    for count, crowd in crowds.items():
        changes = crowd.changes
        rows += [
            f"| {count:,} sandboxes: memory of each | {crowd.memory_kb:.0f} KB | |",
            f"| {count:,} idle sandboxes: CPU of all | {crowd.idle_cpu:.1%} of a core | |",
            f"| {count:,} sandboxes: start | {crowd.start_s:.1f} s | |",
            f"| {count:,} sandboxes: another policy in force for one of them | median "
            f"{statistics.median(changes.wall_ms):.1f} ms, {changes.cpu_ms:.1f} ms of CPU | |",
        ]
    return rows


def worker_rows(results: Results) -> list[str]:
    one, two = (figures(results, _WORKERS.name, name) for name in ("1 worker", "2 workers"))
    if one is None or two is None:
        return []
    able = 2 * one.cost / two.cost
    return [
        f"| What two workers on two cores can serve: at least 1.7 x one, by CPU per request | {able:.2f} x | "
        f"{'met' if able >= 1.7 else 'missed'} |",
        f"| The same by the rate, with origin and generator on the same cores | {two.per_s / one.per_s:.2f} x | |",
    ]


def section(argv: list[str], results: Results, crowds: dict[int, Crowd]) -> str:
    lines = [
        SCALE,
        "",
        f"- Date: {time.strftime('%Y-%m-%d')}; {machine()}",
        f"- Command: `{shlex.join(['python', '-m', 'bench.scale', *argv])}`",
        "",
        "| target | figure | |",
        "|---|---|---|",
        *crowd_rows(crowds, results),
        *worker_rows(results),
        "",
    ]
    for row in (_ROW, _WORKERS):
        lines += [
            *row_table(results, row, dict.fromkeys(peer for name, peer in results.samples if name == row.name)),
            "",
        ]
    lines += [
        "Each sandbox is a client of `exeat serve --clients` with an address, a credential and ten rules of its own,",
        "in a file of its own. Memory is that of the process beyond what it has with one client, divided by their",
        'number. "In force" is from before the file is written until a request is answered by the new policy; the',
        "client asks all the time, which is in the CPU. A worker is a process, and connections stay with theirs. What",
        "two can serve is told by the CPU of a request: on two cores, origin and generator take what the second needs.",
        "",
    ]
    lines += [f"- {row}, {peer}: {reason}" for (row, peer), reason in results.failures.items()]
    return "\n".join(lines).rstrip() + "\n"


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description=__doc__)
    parser.add_argument(
        "--counts", default=",".join(map(str, COUNTS)), help="numbers of sandboxes, with commas between"
    )
    parser.add_argument("--only", choices=("crowds", "workers"), help="one part; the page that is kept is left alone")
    parser.add_argument("--quick", action="store_true", help="one short round: does it all work?")
    parser.add_argument("--out", type=Path, help="Markdown file (default: bench/RESULTS.md for a full run)")
    options = parser.parse_args(argv)
    if options.out is None:
        options.out = WORK / "partial.md" if options.quick or options.only else HERE / "RESULTS.md"
    return options


def main(argv: list[str]) -> int:
    options = parse_arguments(argv)
    WORK.mkdir(exist_ok=True)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 16_384), hard))
    effort = Effort(1, 1.0, 0, 0, 1) if options.quick else Effort(3, 3.0, 0, 0, 1)
    results, crowds = Results(), dict[int, Crowd]()
    try:
        load.build()
        with origin.open_origin(1 << 20):
            if options.only != "workers":
                crowds = measure_crowds([int(each) for each in options.counts.split(",")], effort, results)
            if options.only != "crowds":
                measure_workers(effort, results)
    except BenchError as error:
        say(f"bench: {error}")
        return 2
    put_in(options.out, SCALE, section(argv, results, crowds))
    say(f"wrote {options.out}")
    return 1 if results.failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
