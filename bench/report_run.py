"""The part of the Markdown page that is about `exeat run`: how fast it starts, and what its jail costs."""

import os
import shlex
import statistics
from collections.abc import Iterator

from bench.figures import Figures, figures
from bench.jail import JAIL_ROWS, LOOPBACK, RULES, WAYS, shown_commands
from bench.rows import Effort, Results
from bench.startup import BARE, EXEAT, JAIL, SHOWN, SRT

SRT_LIMIT = 0.4
ABOVE_PYTHON_MS = 90
JAIL_MS = 30
JAIL_TOLERANCE = 0.1

STARTUP_NOTES = """\
Wall time is from start to end, for the jail alone until the command could be started. CPU is that of the program
and of all its children that were waited for. Both have their proxy listening before the command starts. Each run is
a process of its own; `python` is exeat's interpreter."""

JAIL_NOTES = """\
CPU is the gateway's process alone. The same policy and an audit file on every way; `load` is built from
bench/load.c. A proxy is told the destination, and may use a connection to the origin again for another client.
Redirected, the gateway can do so on port 80; on other ports the server may be the one to speak first, so it can
do so only where the client has spoken by the time it is accepted."""


def _wall_ms(results: Results, name: str) -> float | None:
    starts = results.starts.get(name)
    if not starts or ("startup", name) in results.failures:
        return None
    return statistics.median(start.wall_ms for start in starts)


def startup_targets(results: Results) -> Iterator[str]:
    ours, srt, bare, jail = (_wall_ms(results, name) for name in (EXEAT, SRT, BARE, JAIL))
    target = f"Start of `{SHOWN[EXEAT]}`: at most {SRT_LIMIT} x srt"
    if ours is None or srt is None:
        yield f"| {target} | not measured | |"
    else:
        yield f"| {target} | {ours / srt:.2f} x | {'met' if ours / srt <= SRT_LIMIT else 'missed'} |"
    target = f"Start of `{SHOWN[EXEAT]}`: at most {ABOVE_PYTHON_MS} ms above `{SHOWN[BARE]}`"
    if ours is None or bare is None:
        yield f"| {target} | not measured | |"
    else:
        yield f"| {target} | {ours - bare:+.0f} ms | {'met' if ours - bare <= ABOVE_PYTHON_MS else 'missed'} |"
    target = f"Building the jail: less than {JAIL_MS} ms"
    if jail is None:
        yield f"| {target} | not measured | |"
    else:
        yield f"| {target} | {jail:.1f} ms | {'met' if jail < JAIL_MS else 'missed'} |"


def jail_targets(results: Results) -> Iterator[str]:
    limit = f"{JAIL_TOLERANCE:.0%}".replace("%", " %")
    for row in JAIL_ROWS:
        base = figures(results, row.name, LOOPBACK)
        for way in WAYS[1:]:
            target = f"{row.title}; {way}: at most {limit} more CPU than over loopback"
            seen = figures(results, row.name, way)
            if not (base and seen and base.cost and base.per_s):
                yield f"| {target} | not measured | |"
                continue
            cost, rate = seen.cost / base.cost - 1, seen.per_s / base.per_s - 1
            met = cost <= JAIL_TOLERANCE
            yield f"| {target} | CPU {cost:+.0%}, rate {rate:+.0%} | {'met' if met else 'missed'} |"


def startup_table(results: Results, effort: Effort) -> Iterator[str]:
    names = [name for name in SHOWN if name in results.starts or ("startup", name) in results.failures]
    if not names:
        return
    ours = _wall_ms(results, EXEAT)
    who = "root" if os.geteuid() == 0 else "an ordinary user"
    yield f"### Starting a command that does nothing ({effort.starts} runs each, in turns, as {who})"
    yield ""
    yield "| | command | wall ms | spread | CPU ms | spread | exeat's wall ÷ its wall |"
    yield "|---|---|---:|---:|---:|---:|---:|"
    for name in names:
        wall = _wall_ms(results, name)
        if wall is None:
            yield f"| {name} | `{SHOWN[name]}` | failed | | | | |"
            continue
        walls = sorted(start.wall_ms for start in results.starts[name])
        cpus = sorted(start.cpu_ms for start in results.starts[name])
        ratio = f"{ours / wall:.2f}" if ours and name != JAIL else ""
        yield (
            f"| {name} | `{SHOWN[name]}` | {wall:.1f} | {walls[0]:.1f} to {walls[-1]:.1f} "
            f"| {statistics.median(cpus):.1f} | {cpus[0]:.1f} to {cpus[-1]:.1f} | {ratio} |"
        )
    yield ""
    yield STARTUP_NOTES
    yield ""


def _difference(seen: float, base: float) -> str:
    return f"{seen / base - 1:+.0%}" if base else ""


def jail_tables(results: Results, effort: Effort) -> Iterator[str]:
    rows = [row for row in JAIL_ROWS if any((row.name, way) in results.samples for way in WAYS)]
    if not rows:
        return
    for row in rows:
        unit, rate = ("GB", "MB/s") if row.is_bulk else ("10,000", "req/s")
        plural = "" if row.connections == 1 else "s"
        yield f"### From inside the jail: {row.title} ({row.connections} connection{plural})"
        yield ""
        latency_head = "" if row.is_bulk else " p50 ms | p99 ms |"
        yield f"| way to the gateway | CPU s per {unit} | spread | to loopback | {rate} | to loopback |{latency_head}"
        yield "|---|---:|---:|---:|---:|---:|" + ("" if row.is_bulk else "---:|---:|")
        base = figures(results, row.name, LOOPBACK)
        for way in WAYS:
            yield _jail_line(way, figures(results, row.name, way), base, is_bulk=row.is_bulk)
        yield ""
        for way, command in shown_commands(row, effort):
            yield f"- {way}: `{command}`"
        yield ""
    yield f"`RULES` stands for `{shlex.join(RULES)}`."
    yield JAIL_NOTES
    yield ""


def _jail_line(way: str, seen: Figures | None, base: Figures | None, *, is_bulk: bool) -> str:
    if seen is None:
        return f"| {way} | failed | | | | |{'' if is_bulk else ' | |'}"
    cost = rate = ""
    if base and way != LOOPBACK:
        cost, rate = _difference(seen.cost, base.cost), _difference(seen.per_s, base.per_s)
    latency = "" if is_bulk else f" {seen.p50_ms:.2f} | {seen.p99_ms:.2f} |"
    return (
        f"| {way} | {seen.cost:.3f} | {seen.lowest:.3f} to {seen.highest:.3f} | {cost} "
        f"| {seen.per_s:,.0f} | {rate} |{latency}"
    )
