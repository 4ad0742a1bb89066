"""`python -m bench.vms`: what a virtual machine costs, as a section of bench/RESULTS.md.

The kernel is the one that exeat finds (EXEAT_KERNEL). Without acceleration, unless this machine has KVM that works.
"""

import argparse
import os
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import load, origin
from bench.container_network import LOOPBACK_ONLY, OTHER_PORT, over_loopback
from bench.cpu import cpu_s
from bench.figures import figures
from bench.install import say
from bench.jail import REDIRECTED, REDIRECTED_OTHER, gateway_of, plan
from bench.load import Load, Sample, measure
from bench.process import HERE, WORK, BenchError, output_of, raise_descriptor_limit
from bench.report import machine
from bench.rows import Effort, Results, Row, rotated
from bench.sections import VMS, put_in
from bench.startup import Program, _start, run_command
from bench.tables import row_table
from bench.vm_boot import barest_boot
from bench.vm_idle import Idle, measure_idle
from exeat.errors import JailError
from exeat.jail.vm.accel import choose
from exeat.jail.vm.kernel import find_kernel
from exeat.jail.vm.options import AUTO, KVM, MEMORY

BARE, EXEAT, SNAPSHOT, ACCELERATED = "the barest boot", "exeat run --vm", "the same, from a snapshot", "exeat run --kvm"
SAME_RATE = f"{LOOPBACK_ONLY}, at the guest's rate"
PARTS = "start,idle,network"
STARTS = 7
MORE_CPU = 0.15
_SANDBOX = "bench-snapshot"
ROWS = (
    Row("vm-kept", "Plain HTTP, connections kept, out of a guest", "plain"),
    Row("vm-new", "Plain HTTP, a new connection for each request, out of a guest", "plain-new"),
)
_EMULATED = ("--vm", "--accel", "tcg")
_load = " ".join(f"{each:.1f}" for each in os.getloadavg())


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.vms", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round: does it all work?")
    parser.add_argument("--only", default=PARTS, help=f"parts to measure (default: {PARTS})")
    parser.add_argument("--out", type=Path, help="default: the section of bench/RESULTS.md for a full run")
    options = parser.parse_args(argv)
    if options.out is None:
        whole = not options.quick and options.only == PARTS
        options.out = HERE / "RESULTS.md" if whole else WORK / "vms.md"
    return options


def has_kvm() -> bool:
    return choose(AUTO, insists=False).kind == KVM


def measure_start(kernel: str, results: Results, count: int) -> None:
    """All in turns; the first of each fills caches, exeat's own of the unpacked kernel among them."""
    say(f"starting a guest, {count} times each")
    run = run_command(None)
    programs = [
        Program(BARE, barest_boot(kernel, MEMORY)),
        Program(EXEAT, [*run, *_EMULATED, "--memory", str(MEMORY), "--", "true"]),
    ]
    if has_kvm():
        programs.append(Program(ACCELERATED, [*run, "--kvm", "--", "true"]))
    with TemporaryDirectory(prefix="run-", dir=WORK) as name:
        log = Path(name) / "start.log"
        try:
            programs.append(_with_snapshot(run, log))
        except BenchError as error:
            results.failures["start", SNAPSHOT] = str(error)
        for number in range(count + 1):
            for program in rotated(programs, number):
                if ("start", program.name) in results.failures:
                    continue
                try:
                    seen = _start(program, log)
                except BenchError as error:
                    results.failures["start", program.name] = str(error)
                    say(f"  {program.name:28} FAILED: {error}")
                    continue
                if number:
                    results.starts.setdefault(program.name, []).append(seen)
                    say(f"  {program.name:28} {seen.wall_ms:7.0f} ms, {seen.cpu_ms:7.0f} ms of CPU")


def _with_snapshot(run: Sequence[str], log: Path) -> Program:
    """A sandbox whose guest has been saved when it waited for its command."""
    exeat = list(run[:-1])
    same = (*_EMULATED[1:], "--memory", str(MEMORY))
    for words in (
        ["proxy", "create", "--name", _SANDBOX],
        ["vm", "snapshot", "--name", _SANDBOX, *same],
    ):
        _start(Program("snapshot", [*exeat, *words]), log)
    return Program(SNAPSHOT, [*run, "--name", _SANDBOX, "--vm", *same, "--", "true"])


def _gateway_meter() -> Callable[[int], float]:
    found: list[int] = []

    def read(runner: int) -> float:
        if not found:
            found.append(gateway_of(runner))
        return cpu_s(found[0])

    return read


def through_guest(work: Load, way: str) -> Sample:
    """The generator is in the guest, and is a file of this machine there. It knows of no proxy."""
    run = [*run_command(None), *_EMULATED]
    with TemporaryDirectory(prefix="run-", dir=WORK) as name:
        actual, route = plan(way, work, run, str(Path(name) / "audit.jsonl"), 0)
        return measure(actual, route, _gateway_meter())


def at_the_rate_of(sample: Sample, work: Load) -> Sample:
    """Over loopback, with a client that is as slow as the guest's.

    A gateway that is asked less often does less at once, and each request costs it more: that is no matter of guests.
    """
    os.environ["LOAD_PER_S"] = f"{sample.requests / sample.seconds:.1f}"
    try:
        return over_loopback(work)
    finally:
        del os.environ["LOAD_PER_S"]


def measure_network(effort: Effort, results: Results, *, web: bool) -> None:
    for number in range(effort.rounds):
        for row in ROWS:
            work = effort.load(row)
            results.take(row.name, "exeat", partial(through_guest, work, REDIRECTED if web else REDIRECTED_OTHER))
            guest = results.samples.get((row.name, "exeat"), [])
            if len(guest) > number:
                results.take(row.name, SAME_RATE, partial(at_the_rate_of, guest[number], work))
            results.take(row.name, LOOPBACK_ONLY, partial(over_loopback, work))
            if web:
                results.take(row.name, OTHER_PORT, partial(through_guest, work, REDIRECTED_OTHER))


def _middle(results: Results, name: str) -> tuple[float, float] | None:
    """Seconds: of the clock, and of the CPU."""
    if not (starts := results.starts.get(name)):
        return None
    wall, cpu = (statistics.median(getattr(each, kind) for each in starts) / 1e3 for kind in ("wall_ms", "cpu_ms"))
    return wall, cpu


def start_rows(results: Results) -> list[str]:
    bare = _middle(results, BARE)
    if bare is None:
        return []
    rows = [f"| The barest boot of the same kernel, emulated | {bare[0]:.2f} s, {bare[1]:.2f} s of CPU | |"]
    for name, limit in ((EXEAT, 1.2), (SNAPSHOT, 0.5)):
        seen = _middle(results, name)
        what = f"`exeat run --vm -- true`{', from a snapshot' if name == SNAPSHOT else ''}: at most {limit} x that"
        if seen is None:
            rows.append(f"| {what} | not measured | |")
            continue
        wall, cpu = seen[0] / bare[0], seen[1] / bare[1]
        figure = f"{seen[0]:.2f} s ({wall:.2f} x), {seen[1]:.2f} s of CPU ({cpu:.2f} x)"
        rows.append(f"| {what} | {figure} | {'met' if wall <= limit else 'missed'} |")
    kvm = _middle(results, ACCELERATED)
    what = "With KVM: at most 1 s"
    rows.append(
        f"| {what} | {kvm[0]:.2f} s | {'met' if kvm[0] <= 1 else 'missed'} |"
        if kvm
        else f"| {what} | not measured: KVM does not run guests here | |"
    )
    return rows


def network_rows(results: Results) -> list[str]:
    rows = []
    for row in ROWS:
        inside, outside = figures(results, row.name, "exeat"), figures(results, row.name, SAME_RATE)
        if inside is not None and outside is not None:
            more = inside.cost / outside.cost - 1
            what = f"{row.title}: CPU of the gateway at most 15 % above loopback, at the same rate"
            rows.append(f"| {what} | {more:+.0%} | {'met' if more <= MORE_CPU else 'missed'} |")
    return rows


def idle_rows(guest: Idle | None, jail: Idle | None) -> list[str]:
    if guest is None or jail is None:
        return []
    parts = f"QEMU {guest.qemu:.0f}, virtiofsd {guest.virtiofsd:.0f}, exeat {guest.exeat:.0f}"
    return [
        f"| Memory of an idle guest of {MEMORY >> 30} GiB | {guest.total:.0f} MB: {parts} | |",
        f"| The same command without `--vm` | {jail.total:.0f} MB | |",
    ]


def section(argv: list[str], kernel: str, results: Results, idle: tuple[Idle | None, Idle | None]) -> str:
    version = output_of("qemu-system-x86_64", "--version").partition("\n")[0]
    lines = [
        VMS,
        "",
        f"- Date: {time.strftime('%Y-%m-%d')}; {machine()}",
        f"- {version}; kernel {kernel}; load of the machine before: {_load}",
        f"- Command: `{shlex.join(['python', '-m', 'bench.vms', *argv])}`",
        "",
        "| target | figure | |",
        "|---|---|---|",
        *start_rows(results),
        *network_rows(results),
        *idle_rows(*idle),
        "",
    ]
    for row in ROWS:
        peers = [peer for name, peer in results.samples if name == row.name]
        if peers:
            lines += [*row_table(results, row, dict.fromkeys(peers)), ""]
    lines += [
        f"Medians of starts in turns. A start is from the call to the exit status. Both guests have {MEMORY >> 30} GiB",
        "and one emulated processor. `exeat` in the tables is the gateway of a run whose client is in the guest and",
        "knows of no proxy. An emulated client is slow, and a gateway that has less to do at once spends more on each",
        "request: so it is compared with a client over loopback that asks as often. On other ports than the",
        "web's a server may speak first, and a guest's first bytes come late: the gateway dials for each connection.",
        "Memory is PSS: a page that several processes share counts in parts.",
        "",
    ]
    lines += [f"- {row}, {peer}: {reason}" for (row, peer), reason in results.failures.items()]
    return "\n".join(lines).rstrip() + "\n"


def main(argv: list[str]) -> int:
    options = parse_arguments(argv)
    parts = options.only.split(",")
    raise_descriptor_limit()
    WORK.mkdir(exist_ok=True)
    effort = Effort(1, 1.0, 0, 0, 1) if options.quick else Effort(3, 3.0, 0, 0, STARTS)
    results = Results()
    guest = jail = None
    try:
        kernel = find_kernel("", os.environ)
    except JailError as error:
        say(f"bench: {error.public} ({error.fix})")
        return 2
    with TemporaryDirectory(prefix="home-", dir=WORK) as home:
        os.environ["EXEAT_HOME"] = home
        try:
            if "start" in parts:
                measure_start(kernel.path, results, effort.starts)
                say("\n".join(start_rows(results)))
            if "idle" in parts:
                jail, guest = measure_idle(()), measure_idle((*_EMULATED, "--memory", str(MEMORY)))
                say("\n".join(idle_rows(guest, jail)))
            if "network" in parts:
                load.build()
                with origin.open_origin(1 << 20) as web:
                    measure_network(effort, results, web=web)
        except BenchError as error:
            say(f"bench: {error}")
            return 2
    put_in(options.out, VMS, section(argv, kernel.version, results, (guest, jail)))
    say(f"wrote {options.out}")
    return 1 if results.failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
