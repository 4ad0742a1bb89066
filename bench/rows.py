"""What is measured: the rows of the comparison, and the figures that only exeat has a target for."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from bench.cpu import cpu_s, rss_mb
from bench.install import say
from bench.load import Load, Sample, Way, measure
from bench.origin import BULK_PATH, LOCAL, PLAIN_PORT, SMALL_PATH, UNIQUE_PATH
from bench.peers import Exeat, Peer, open_peer
from bench.process import WORK, BenchError

IDLE_TUNNELS = 1000
RULE_COUNTS = (10, 1000, 10000)
ROUNDS_MORE = 2
DIRECT = "no proxy"
Turn = TypeVar("Turn")


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    title: str
    mode: str
    connections: int = 32

    @property
    def is_bulk(self) -> bool:
        return self.name.endswith("bulk")


ROWS = (
    Row("keepalive", "Plain HTTP, connections kept", "plain"),
    Row("unique", "Plain HTTP, connections kept, no header line repeated", "plain-unique"),
    Row("new", "Plain HTTP, a new connection for each request", "plain-new"),
    Row("tunnel", "CONNECT once per connection, then many requests over TLS inside it", "tunnel"),
    Row("connect", "CONNECT, TLS handshake and one request, new each time", "tunnel-new"),
    Row("bulk", "CONNECT and TLS, a large download over one connection", "tunnel", connections=1),
)
EXTRA_ROWS = ("memory", "rules", "startup", "jail", "kept")


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is spent on each figure."""

    rounds: int
    seconds: float
    requests: int
    bulk_bytes: int
    starts: int

    @property
    def more_rounds(self) -> int:
        """Rounds where the target is a small difference."""
        return self.rounds + ROUNDS_MORE if self.rounds > 1 else 1

    def load(self, row: Row) -> Load:
        if row.is_bulk:  # no warm-up: the first download would be the measurement
            return Load(row.mode, row.connections, self.seconds, 0, 0.0, BULK_PATH, self.bulk_bytes)
        path = UNIQUE_PATH if row.mode.endswith("-unique") else SMALL_PATH
        return Load(row.mode, row.connections, self.seconds, self.requests, min(1.0, self.seconds / 2), path)


@dataclass(frozen=True, slots=True)
class Start:
    """One program from its start to its end, or one jail until it is ready."""

    wall_ms: float
    cpu_ms: float


@dataclass(slots=True)
class Results:
    """Everything that was seen, by (row, peer): the samples, and why there are none."""

    versions: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    samples: dict[tuple[str, str], list[Sample]] = field(default_factory=dict)
    failures: dict[tuple[str, str], str] = field(default_factory=dict)
    starts: dict[str, list[Start]] = field(default_factory=dict)
    kept: dict[str, list[float]] = field(default_factory=dict)  # milliseconds

    def take(self, row: str, peer: str, work: Callable[[], Sample], unit: str = "CPU s") -> None:
        """Run one measurement. A failure is kept and ends that peer's turns in this row."""
        if (row, peer) in self.failures:
            return
        try:
            sample = work()
        except BenchError as error:
            self.failures[row, peer] = str(error)
            say(f"  {row:10} {peer:16} FAILED: {error}")
            return
        self.samples.setdefault((row, peer), []).append(sample)
        rate = sample.requests / sample.seconds
        say(f"  {row:10} {peer:16} {sample.requests:8} requests {rate:9.0f}/s {sample.used:8.3f} {unit}")


def rotated(peers: Sequence[Turn], by: int) -> Iterable[Turn]:
    """Each round begins with another peer, so that a slow minute of the machine does not hit the same one."""
    at = by % len(peers)
    return (*peers[at:], *peers[:at])


def compare(rows: Sequence[Row], peers: Sequence[Peer], effort: Effort, results: Results) -> None:
    """All peers take turns in every round; each measurement has a fresh process, alone."""
    for round_number in range(effort.rounds):
        say(f"round {round_number + 1} of {effort.rounds}")
        for row in rows:
            load = effort.load(row)
            if round_number == 0 and row.name == "keepalive":
                ceiling = Load("direct", row.connections, load.seconds, load.requests, load.warm_s)
                results.take(
                    row.name, DIRECT, partial(measure, ceiling, Way(LOCAL.place(over_tls=False)), lambda _: 0.0)
                )
            for peer in rotated(peers, round_number):
                results.take(row.name, peer.name, partial(through, peer, load))


def through(peer: Peer, load: Load) -> Sample:
    with open_peer(peer, tunnels=load.over_tls) as (port, pid):
        return measure(load, Way(f"127.0.0.1:{port}"), lambda _: cpu_s(pid))


def measure_memory(exeat: Exeat, results: Results) -> None:
    """Memory of idle tunnels: each client has done CONNECT and its TLS handshake, and then says nothing."""
    say(f"memory with {IDLE_TUNNELS} idle tunnels")
    load = Load("idle", IDLE_TUNNELS, requests=IDLE_TUNNELS, warm_s=0.0)

    def work() -> Sample:
        with open_peer(exeat, tunnels=True) as (port, pid):

            def settled_mb(_: int) -> float:
                time.sleep(1)
                return rss_mb(pid)

            return measure(load, Way(f"127.0.0.1:{port}"), settled_mb)

    results.take("memory", exeat.name, work, unit="MB")


def write_policy(count: int) -> Path:
    """A policy of *count* rules, of which only the last one matters here."""
    rules = [f"host{n:05}.example.net" for n in range(1, count)] + [f"127.0.0.1:{PLAIN_PORT}"]
    path = WORK / f"policy-{count}.toml"
    path.write_text("allow = [\n" + "".join(f'  "{rule}",\n' for rule in rules) + "]\n")
    return path


def measure_rules(program: str | None, effort: Effort, results: Results) -> None:
    """The same keep-alive load with ever more rules, in turns; more of them, for the target is a small difference."""
    say("cost by number of rules")
    load = effort.load(ROWS[0])
    peers: Mapping[int, Peer] = {count: Exeat(program, write_policy(count)) for count in RULE_COUNTS}
    for _ in range(effort.more_rounds):
        for count, peer in peers.items():
            results.take("rules", str(count), partial(through, peer, load))
