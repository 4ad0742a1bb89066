"""What an idle guest takes of the machine's memory, by process: shares of shared pages, as the kernel divides them."""

import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bench.cpu import process_tree
from bench.process import ROOT, BenchError, stop
from bench.startup import run_command

SETTLE_S = 3.0
_PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Idle:
    """Megabytes (10^6): of QEMU, of virtiofsd, of exeat's own processes."""

    qemu: float
    virtiofsd: float
    exeat: float

    @property
    def total(self) -> float:
        return self.qemu + self.virtiofsd + self.exeat


def _pss_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024 / 1e6
    return 0.0


def measure_idle(options: Sequence[str]) -> Idle:
    """Of a command that has begun and does nothing."""
    argv = [*run_command(None), *options, "--", "sh", "-c", "echo up; exec sleep 600"]
    process = subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert process.stdout
        if process.stdout.readline().strip() != b"up":
            raise BenchError("the command did not begin")
        time.sleep(SETTLE_S)
        sums = {"qemu": 0.0, "virtiofsd": 0.0, "exeat": 0.0}
        for pid in process_tree(process.pid):
            with suppress(OSError):  # it has ended
                name = Path(f"/proc/{pid}/comm").read_text()
                kind = next((each for each in ("qemu", "virtiofsd") if name.startswith(each)), "exeat")
                sums[kind] += _pss_mb(pid)
    finally:
        stop(process)
        if process.stdout is not None:
            process.stdout.close()
    return Idle(**sums)
