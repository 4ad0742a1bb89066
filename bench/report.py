"""Turns samples into the Markdown page: one table for each row, and the targets with their figures."""

import os
import platform
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from bench.figures import figures
from bench.report_intercept import intercept_tables, intercept_targets, secrets_table
from bench.report_kept import kept_table, kept_targets
from bench.report_run import jail_tables, jail_targets, startup_table, startup_targets
from bench.rows import DIRECT, IDLE_TUNNELS, ROWS, RULE_COUNTS, Effort, Results, Row
from bench.tables import against, against_best, no_later, row_table

NOTES = """\
- CPU is the time used by the proxy's whole process tree, helpers and ended children included, between the end of
  the warm-up and the last reply. It is the figure to compare: rates and latencies depend on what else the machine
  does, and origin, load generator and proxy share its cores.
- Figures are medians over the rounds; the spread is the lowest and the highest round. Every measurement starts a
  fresh process, one proxy at a time, and the order changes from round to round.
- exeat, squid and tinyproxy log each request to a file, proxy.py each client connection; mitmproxy (`-q`) and
  sandbox-runtime log nothing. exeat writes its audit file, two chained records for each request; it and
  sandbox-runtime are the only ones here that check an allowlist of destinations.
- tinyproxy's log is in memory (tmpfs), the others' are on disk: it syncs every line, which on a disk would cost it
  several times the CPU shown here.
- Where the time of a request goes, and so why a target is missed where one is: docs/performance.md.
- The load asks for one small file again and again, so header lines repeat, and exeat keeps what it has read of such
  lines. In the row "no header line repeated" each request and each response has a line that no other has.
- tinyproxy closes the connection after each plain request, so its rows "kept" and "new" are the same work.
- mitmproxy tunnels blindly in the CONNECT rows (`--ignore-hosts '.*'`), as all the others do.
- sandbox-runtime's HTTP proxy is started alone from the package's own files, without its SOCKS front end.
- The client resumes its TLS session in the row of new tunnels, to keep client and origin cheap.
- The figures by number of rules and from inside the jail have two rounds more than the others; memory is read once.
- 1 GB is 10^9 bytes, 1 MB is 10^6 bytes."""


def targets(results: Results) -> Iterator[str]:
    yield "## Targets"
    yield ""
    yield "| target | figure | |"
    yield "|---|---|---|"
    yield against(results, "keepalive", "squid", 0.7, "CPU, plain, connections kept")
    yield against(results, "new", "squid", 0.8, "CPU, plain, new connections")
    yield against_best(results, "tunnel", 0.8, "CPU, inside a kept tunnel")
    yield against(results, "connect", "squid", 1.0, "CPU, new CONNECT tunnels")
    yield against(results, "bulk", "squid", 0.5, "CPU per GB, bulk download")
    yield no_later(results, "keepalive", "squid", "p99 of plain, connections kept")
    yield no_later(results, "connect", "squid", "p99 of new CONNECT tunnels")
    target = f"Memory with {IDLE_TUNNELS:,} idle tunnels: at most 60 MB above start"
    memory = results.samples.get(("memory", "exeat"))
    if memory:
        grown = memory[0].used
        yield f"| {target} | {grown:.1f} MB | {'met' if grown <= 60 else 'missed'} |"
    else:
        yield f"| {target} | not measured | |"
    few, many = (figures(results, "rules", str(RULE_COUNTS[at])) for at in (0, -1))
    target = f"CPU from {RULE_COUNTS[0]} to {RULE_COUNTS[-1]:,} rules: grows by at most 10 %"
    if few and many and few.cost:
        change = many.cost / few.cost - 1
        yield f"| {target} | {change:+.0%} | {'met' if change <= 0.1 else 'missed'} |"
    else:
        yield f"| {target} | not measured | |"
    yield from startup_targets(results)
    yield from jail_targets(results)
    yield from intercept_targets(results)
    yield from kept_targets(results)
    yield ""


def exeat_only(results: Results) -> Iterator[str]:
    counted = [(count, figures(results, "rules", str(count))) for count in RULE_COUNTS]
    if not any(seen for _, seen in counted):
        return
    yield "### exeat, plain HTTP, connections kept, by number of rules"
    yield ""
    yield "| rules | CPU s per 10,000 | spread | req/s |"
    yield "|---:|---:|---:|---:|"
    for count, seen in counted:
        if seen:
            spread = f"{seen.lowest:.3f} to {seen.highest:.3f}"
            yield f"| {count:,} | {seen.cost:.3f} | {spread} | {seen.per_s:,.0f} |"
    yield ""


def machine() -> str:
    model = platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return f"{model}, {os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}"


def page(results: Results, rows: list[Row], effort: Effort, command: str, origin: str) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in results.versions.items())
    measured = f"{effort.requests:,} requests" if effort.requests else f"{effort.seconds:g} s"
    lines = [
        "# Results",
        "",
        f"- Date: {datetime.now(UTC):%Y-%m-%d}",
        f"- Machine: {machine()}",
        f"- Versions: {versions}; origin nginx {origin}, over loopback",
        f"- Command: `{command}` ({effort.rounds} round{'' if effort.rounds == 1 else 's'}, {measured} each)",
        "",
        *targets(results),
        "## Comparison",
        "",
    ]
    for row in (row for row in ROWS if row in rows):
        lines += row_table(results, row, (*results.versions, *results.left_out, DIRECT))
    lines += intercept_tables(results, effort)
    lines += secrets_table(results)
    lines += exeat_only(results)
    lines += startup_table(results, effort)
    lines += jail_tables(results, effort)
    lines += kept_table(results, effort)
    lines += ["## How to read this", "", NOTES, ""]
    problems = [f"- {name}: left out, {reason}" for name, reason in results.left_out.items()]
    problems += [f"- {peer}, row {row}: {reason}" for (row, peer), reason in results.failures.items()]
    if problems:
        lines += ["## Not measured", "", *problems, ""]
    return "\n".join(lines)
