"""What a proxy costs: CPU time and memory of its whole process tree, read from /proc."""

import os
import time
from collections import defaultdict
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def _stat_fields(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the third on; the second may hold spaces and brackets."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def process_tree(root: int) -> list[int]:
    """*root* and its living descendants."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                children[int(_stat_fields(int(entry.name))[1])].append(int(entry.name))
            except OSError:
                continue  # ended while we were looking
    tree = [root]
    for pid in tree:
        tree.extend(children[pid])
    return tree


def _own_cpu_s(pid: int, fields: list[str]) -> float:
    """CPU time of one process, with its ended threads.

    The process's CPU clock counts nanoseconds; the sums in /proc/PID/stat come in ticks of 10 ms, and
    per-thread schedstat files vanish with their threads, which would hide a thread-per-connection proxy.
    The clock's number is what clock_getcpuclockid(3) computes.
    """
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def cpu_s(root: int) -> float:
    """CPU seconds used so far by the tree under *root*, children that have ended included."""
    total = 0.0
    for pid in process_tree(root):
        try:
            fields = _stat_fields(pid)
            total += _own_cpu_s(pid, fields) + (int(fields[13]) + int(fields[14])) / TICKS_PER_S
        except OSError:
            continue
    return total


def rss_mb(root: int) -> float:
    """Resident memory of the tree, in 10^6 bytes. Pages that are shared count once for each process."""
    total = 0
    for pid in process_tree(root):
        try:
            total += int(_stat_fields(pid)[21]) * PAGE_BYTES
        except OSError:
            continue
    return total / 1e6
