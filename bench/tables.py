"""The shapes that the page is made of: the table of one row with all its peers, and the line of one target."""

from collections.abc import Iterable, Iterator

from bench.figures import figures, unit_of
from bench.rows import DIRECT, Results, Row


def row_table(results: Results, row: Row, peers: Iterable[str]) -> Iterator[str]:
    unit = unit_of(row.name)
    latency_head = "" if unit.is_volume else " p50 ms | p99 ms |"
    plural = "" if row.connections == 1 else "s"
    yield f"### {row.title} ({row.connections} connection{plural})"
    yield ""
    yield f"| proxy | CPU s per {unit.label} | spread | exeat's CPU ÷ its CPU | {unit.rate_label} |{latency_head}"
    yield "|---|---:|---:|---:|---:|" + ("" if unit.is_volume else "---:|---:|")
    ours = figures(results, row.name, "exeat")
    for name in peers:
        seen = figures(results, row.name, name)
        if seen is None:
            reason = results.left_out.get(name) or results.failures.get((row.name, name))
            if reason:
                word = "left out" if name in results.left_out else "failed"
                yield f"| {name} | {word} | | | |{latency_head and ' | |'}"
            continue
        latency = "|" if unit.is_volume else f"| {seen.p50_ms:.2f} | {seen.p99_ms:.2f} |"
        if name == DIRECT:
            yield f"| *{name}* | | | | {seen.per_s:,.0f} {latency}"
            continue
        ratio = f"{ours.cost / seen.cost:.2f}" if ours and seen.cost else ""
        yield (
            f"| {name} | {seen.cost:.3f} | {seen.lowest:.3f} to {seen.highest:.3f} | {ratio} "
            f"| {seen.per_s:,.0f} {latency}"
        )
    yield ""


def against_best(results: Results, row: str, limit: float, what: str) -> str:
    """The peer that needs the least in this row."""
    peers = {peer for of, peer in results.samples if of == row and peer not in ("exeat", DIRECT)}
    costs = {peer: seen.cost for peer in peers if (seen := figures(results, row, peer)) is not None}
    best = min(costs, key=lambda peer: costs[peer], default="the best peer")
    return against(results, row, best, limit, what)


def no_later(results: Results, row: str, peer: str, what: str) -> str:
    ours, theirs = figures(results, row, "exeat"), figures(results, row, peer)
    target = f"{what}: not above {peer}'s"
    if ours is None or theirs is None:
        return f"| {target} | not measured | |"
    is_met = ours.p99_ms <= theirs.p99_ms
    return f"| {target} | {ours.p99_ms:.2f} ms, {theirs.p99_ms:.2f} | {'met' if is_met else 'missed'} |"


def against(results: Results, row: str, peer: str, limit: float, what: str) -> str:
    ours, theirs = figures(results, row, "exeat"), figures(results, row, peer)
    target = f"{what}: at most {limit} x {peer}"
    if ours is None or theirs is None or not theirs.cost:
        return f"| {target} | not measured | |"
    ratio = ours.cost / theirs.cost
    return f"| {target} | {ratio:.2f} x | {'met' if ratio <= limit else 'missed'} |"
