"""From samples to figures: medians over the rounds, and their spread."""

import statistics
from dataclasses import dataclass

from bench.load import Sample
from bench.rows import Results


@dataclass(frozen=True, slots=True)
class Unit:
    """What the cost of a row is counted by: so many requests, or so many bytes that were downloaded.

    Where *mb_each* is given, each request has moved so many megabytes, and the rate is told in these.
    """

    label: str
    requests: float = 0
    bytes: float = 0
    mb_each: float = 0

    @property
    def is_volume(self) -> bool:
        """Is it about few large transfers, whose latency says nothing?"""
        return bool(self.bytes or self.mb_each)

    @property
    def rate_label(self) -> str:
        return "MB/s" if self.is_volume else "req/s"

    def cost(self, sample: Sample) -> float:
        if self.bytes:
            return sample.used / sample.bytes * self.bytes
        return sample.used / sample.requests * self.requests

    def rate(self, sample: Sample) -> float:
        done = sample.bytes / 1e6 if self.bytes else sample.requests * (self.mb_each or 1)
        return done / sample.seconds


def unit_of(row: str) -> Unit:
    if row.endswith("bulk"):
        return Unit("GB", bytes=1e9)
    if row.endswith("upload"):
        return Unit("50 MB", requests=1, mb_each=50)
    if row.startswith("intercept"):
        return Unit("1,000", requests=1e3)
    return Unit("10,000", requests=1e4)


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


def figures(results: Results, row: str, peer: str) -> Figures | None:
    samples = results.samples.get((row, peer))
    if not samples or (row, peer) in results.failures:
        return None
    unit = unit_of(row)
    costs = [unit.cost(sample) for sample in samples]
    return Figures(
        statistics.median(costs),
        min(costs),
        max(costs),
        statistics.median(unit.rate(sample) for sample in samples),
        statistics.median(sample.p50_us for sample in samples) / 1e3,
        statistics.median(sample.p99_us for sample in samples) / 1e3,
        max(sample.reconnects for sample in samples),
    )
