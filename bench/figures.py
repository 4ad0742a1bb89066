"""From samples to figures: medians over the rounds, and their spread."""

import statistics
from dataclasses import dataclass

from bench.load import Sample
from bench.rows import Results


@dataclass(frozen=True, slots=True)
class Figures:
    """The medians of one peer in one row."""

    cost: float
    lowest: float
    highest: float
    per_s: float
    p50_ms: float
    p99_ms: float
    reconnects: int


def cost_of(sample: Sample, *, bulk: bool) -> float:
    return sample.used / sample.bytes * 1e9 if bulk else sample.used / sample.requests * 1e4


def figures(results: Results, row: str, peer: str) -> Figures | None:
    samples = results.samples.get((row, peer))
    if not samples or (row, peer) in results.failures:
        return None
    bulk = row.endswith("bulk")
    costs = [cost_of(sample, bulk=bulk) for sample in samples]
    work = [sample.bytes / 1e6 if bulk else sample.requests for sample in samples]
    return Figures(
        statistics.median(costs),
        min(costs),
        max(costs),
        statistics.median(done / sample.seconds for done, sample in zip(work, samples, strict=True)),
        statistics.median(sample.p50_us for sample in samples) / 1e3,
        statistics.median(sample.p99_us for sample in samples) / 1e3,
        max(sample.reconnects for sample in samples),
    )
