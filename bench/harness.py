"""What a call of a tool costs: a harness on a socket pair, without a container.

    python -m bench.harness [calls]

*Waiting*: the harness had time to make a pair of processes for the call, as in a sandbox that waits to be claimed.
*Bound*: the same, and before the call it is given certificates and variables. *In a row*: one call after another, so
each of them forks. CPU is that of the harness and everything below it.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from tests.support.harnesses import Started, start_harness

_TOOL = """
def add(a: int, b: int = 2) -> int:
    return a + b
"""
_PAUSE_S = 0.06


def _cpu_ms(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return sum(int(each) * 10 for each in fields[11:15])  # its own and its children's, user and system


async def _measure(started: Started, calls: int, pause_s: float, files: Mapping[str, bytes] | None = None) -> str:
    took = []
    before = _cpu_ms(started.process.pid)
    for _ in range(calls):
        await asyncio.sleep(pause_s)
        start = time.perf_counter()
        if files is not None:
            await started.client.bind({"SSL_CERT_FILE": "{files}/ca.pem", "TOKEN": "placeholder"}, files)
        await started.client.call("add", {"a": 1})
        took.append((time.perf_counter() - start) * 1000)
    cpu = (_cpu_ms(started.process.pid) - before) / calls
    took.sort()
    return f"median {statistics.median(took):.1f} ms, p99 {took[calls * 99 // 100]:.1f} ms, CPU {cpu:.1f} ms a call"


async def main(calls: int) -> None:
    async with start_harness(_TOOL) as started:
        print("waiting:     ", await _measure(started, calls, _PAUSE_S))
        print("bound:       ", await _measure(started, calls, _PAUSE_S, {"ca.pem": b"x" * 250_000}))
        print("in a row:    ", await _measure(started, calls, 0))
        start = time.perf_counter()
        await asyncio.gather(*(started.client.call("add", {"a": 1}) for _ in range(50)))
        print(f"50 at once:   {(time.perf_counter() - start) * 1000:.0f} ms in all")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 200))
