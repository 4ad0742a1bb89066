"""`python -m bench.containers --image IMAGE`: what containers and pools cost, as a section of bench/RESULTS.md.

The engine is the one that exeat finds (DOCKER_HOST, EXEAT_ENGINE). IMAGE has Python and libssl in it. `docker` or
`podman` on PATH is what a start is compared with.
"""

import argparse
import os
import shlex
import statistics
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import load, origin
from bench.container_network import CONTAINER, LOOPBACK_ONLY, ROWS, measure_network
from bench.container_pool import AT_ONCE, IDLE, SIZE, Pooled, measure_pool, middle, percentile
from bench.figures import figures
from bench.install import say
from bench.process import HERE, WORK, BenchError, raise_descriptor_limit
from bench.report import machine
from bench.rows import Effort, Results, rotated
from bench.sections import CONTAINERS, put_in
from bench.startup import Program, _start, run_command
from bench.tables import row_table
from exeat.engine.find import open_engine

EXEAT, ENGINE = "exeat run --container", "the engine alone"
MORE_CPU, MORE_MS = 0.15, 150.0


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.containers", description=__doc__)
    parser.add_argument("--image", required=True, help="an image with Python and libssl that the engine has")
    parser.add_argument("--claims", type=int, default=200, help="claims one after another (default: 200)")
    parser.add_argument("--quick", action="store_true", help="one short round: does it all work?")
    parser.add_argument("--only", default="start,pool,network", help="parts to measure (default: start,pool,network)")
    parser.add_argument("--out", type=Path, help="default: the section of bench/RESULTS.md for a full run")
    options = parser.parse_args(argv)
    if options.out is None:
        whole = not options.quick and options.only == "start,pool,network"
        options.out = HERE / "RESULTS.md" if whole else WORK / "containers.md"
    return options


def measure_start(image: str, kind: str, results: Results, count: int) -> None:
    """Both in turns; the first of each fills caches."""
    say(f"starting a container, {count} times each")
    alone = [kind, "run", "--rm", "--network", "none", image, "true"]
    programs = [
        Program(ENGINE, alone),
        Program(EXEAT, [*run_command(None), "--container", image, "--", "true"]),
    ]
    with TemporaryDirectory(prefix="run-", dir=WORK) as name:
        for number in range(count + 1):
            for program in rotated(programs, number):
                seen = _start(program, Path(name) / "start.log")
                if number:
                    results.starts.setdefault(program.name, []).append(seen)


def _judged(what: str, figure: str, met: bool) -> str:
    return f"| {what} | {figure} | {'met' if met else 'missed'} |"


def start_rows(results: Results) -> list[str]:
    if ENGINE not in results.starts or EXEAT not in results.starts:
        return []
    ours, theirs = (statistics.median(each.wall_ms for each in results.starts[name]) for name in (EXEAT, ENGINE))
    what = "Start of `exeat run --container IMAGE -- true`: at most 150 ms above `docker run --rm --network none`"
    return [_judged(what, f"{ours:.0f} ms, {ours - theirs:+.0f} ms", ours - theirs <= MORE_MS)]


def pool_rows(found: Pooled) -> list[str]:
    rows = []
    for title, times, median_ms, p99_ms in (
        (f"Claim to answer, pool of {SIZE} full: median at most 15 ms, p99 at most 50", found.at_rest, 15, 50),
        (f"The same, {len(found.in_turn)} one after another, while others are made", found.in_turn, 15, 50),
    ):
        median, p99 = middle(times), percentile(times, 0.99)
        rows.append(_judged(title, f"median {median:.1f} ms, p99 {p99:.1f} ms", median <= median_ms and p99 <= p99_ms))
    total = len(found.at_rest) + len(found.in_turn) + len(found.at_once)
    once = f"median {middle(found.at_once):.0f} ms, last {max(found.at_once):.0f} ms"
    ratio = found.made_per_s / found.engine_per_s
    return [
        *rows,
        f"| {AT_ONCE} claims at once, from a pool of {AT_ONCE} | {once} | |",
        _judged(
            "Claims that failed, or got another's answer: none",
            f"{found.failed} and {found.wrong} of {total}",
            not found.failed and not found.wrong,
        ),
        _judged(
            "Sandboxes are replaced at the engine's own rate: at least 0.7 x",
            f"{found.made_per_s:.1f} a second; the engine by itself {found.engine_per_s:.1f} ({ratio:.2f} x)",
            ratio >= 0.7,
        ),
        _judged(
            f"Memory of the program for each idle sandbox: at most 200 KB (from 2 to {IDLE})",
            f"{found.idle_kb:.0f} KB",
            found.idle_kb <= 200,
        ),
    ]


def network_rows(results: Results) -> list[str]:
    rows = []
    for row in ROWS:
        inside, outside = figures(results, row.name, CONTAINER), figures(results, row.name, LOOPBACK_ONLY)
        if inside is not None and outside is not None:
            more = inside.cost / outside.cost - 1
            what = f"{row.title}, out of a container: CPU of the gateway at most 15 % above loopback"
            rows.append(_judged(what, f"{more:+.0%}", more <= MORE_CPU))
    return rows


def section(argv: list[str], results: Results, found: Pooled | None, engine: str) -> str:
    lines = [
        CONTAINERS,
        "",
        f"- Date: {time.strftime('%Y-%m-%d')}; {machine()}",
        f"- Engine: {engine}; load of the machine before: {_load}",
        f"- Command: `{shlex.join(['python', '-m', 'bench.containers', *argv])}`",
        "",
        "| target | figure | |",
        "|---|---|---|",
        *start_rows(results),
        *(pool_rows(found) if found is not None else []),
        *network_rows(results),
        "",
    ]
    for row in ROWS:
        peers = [peer for name, peer in results.samples if name == row.name]
        if peers:
            lines += [*row_table(results, row, dict.fromkeys(peers)), ""]
    if any(name == row.name for row in ROWS for name, _ in results.samples):
        lines += [
            "`exeat` is the gateway of a run in a container, whose client knows of no proxy. On other ports than the",
            "web's a server may speak first, so the gateway dials for each connection; over loopback it need not.",
            "A sidecar is squid or tinyproxy at the other end of a cable, and a client that variables tell of it.",
            "A network namespace stands for the client's container. Nothing stops a client that ignores the variables.",
            "",
        ]
    lines += [f"- {row}, {peer}: {reason}" for (row, peer), reason in results.failures.items()]
    return "\n".join(lines).rstrip() + "\n"


_load = " ".join(f"{each:.1f}" for each in os.getloadavg())


def main(argv: list[str]) -> int:
    options = parse_arguments(argv)
    parts = options.only.split(",")
    raise_descriptor_limit()
    WORK.mkdir(exist_ok=True)
    effort = Effort(1, 1.0, 0, 0, 5) if options.quick else Effort(3, 3.0, 0, 0, 15)
    results, found = Results(), None
    engine = open_engine()
    try:
        load.build()
        if "start" in parts:
            measure_start(options.image, engine.kind, results, effort.starts)
            say("\n".join(start_rows(results)))
        if "pool" in parts:
            with TemporaryDirectory(prefix="run-", dir=WORK) as name:
                audit = str(Path(name) / "audit.jsonl")
                claims, replaced = (20, 8) if options.quick else (options.claims, 40)
                found = measure_pool(options.image, audit, claims=claims, replaced=replaced)
            say("\n".join(pool_rows(found)))
        if "network" in parts:
            with origin.open_origin(1 << 20) as web:
                measure_network(options.image, effort, results, web=web)
    except BenchError as error:
        say(f"bench: {error}")
        return 2
    version = engine.call("GET", "/version")["Version"]
    put_in(options.out, CONTAINERS, section(argv, results, found, f"{engine.kind} {version}"))
    say(f"wrote {options.out}")
    return 1 if results.failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
