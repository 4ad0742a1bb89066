"""The part of the Markdown page that is about sandboxes that are kept."""

import statistics
from collections.abc import Iterator

from bench.kept import ALLOW, BARE, IN_FORCE, LIST, LOAD, LOG, LOG_LARGE
from bench.rows import Effort, Results

_TARGETS = (
    (LIST, 50, "`exeat proxy list`: at most 50 ms"),
    (IN_FORCE, 100, "A changed list in force in a running sandbox: within 100 ms"),
    (LOAD, 100, "10,000 rules load: in under 100 ms"),
)
_NOTES = """\
Wall time of whole commands, each a process of its own, in turns with an interpreter that does nothing. "A change in
force" is without starting a command: from before the list is opened until the running sandbox has answered that it took
it. Every name was refused before it was allowed, let through after, and refused again after it was blocked. "10,000
rules" is CPU time from text to policy, half of them with subdomains."""


def kept_targets(results: Results) -> Iterator[str]:
    for what, limit_ms, target in _TARGETS:
        times = results.kept.get(what)
        if not times:
            yield f"| {target} | not measured | |"
        else:
            median = statistics.median(times)
            yield f"| {target} | {median:.1f} ms | {'met' if median < limit_ms else 'missed'} |"
    small, large = results.kept.get(LOG), results.kept.get(LOG_LARGE)
    if small and large:
        difference = statistics.median(large) - statistics.median(small)
        yield f"| The last rows of a log of 1 GB: at once | {difference:+.1f} ms to a small log | |"


def kept_table(results: Results, effort: Effort) -> Iterator[str]:
    if not results.kept:
        return
    yield f"### Sandboxes that are kept ({effort.starts} times each)"
    yield ""
    yield "| | median ms | spread |"
    yield "|---|---:|---:|"
    for what in (BARE, LIST, LOG, LOG_LARGE, ALLOW, IN_FORCE, LOAD):
        times = results.kept.get(what)
        if times:
            yield f"| {what} | {statistics.median(times):.1f} | {min(times):.1f} to {max(times):.1f} |"
    yield ""
    yield _NOTES
    yield ""
