"""Drives load.c, the generator: compiles it at first use, reads a meter (CPU, memory) around the measured phase."""

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from bench.install import need_program, want_header
from bench.origin import LOCAL, SMALL_BYTES, SMALL_PATH, Site
from bench.process import HERE, ROOT, WORK, BenchError, stop


@dataclass(frozen=True, slots=True)
class Load:
    """What to send. *requests* bounds the measured phase when it is not 0, else *seconds* does.

    *token* goes out as a bearer token with each request, and so does *body*, the path of a file.
    """

    mode: str
    connections: int = 32
    seconds: float = 3.0
    requests: int = 0
    warm_s: float = 1.0
    path: str = SMALL_PATH
    length: int = SMALL_BYTES
    token: str = ""
    body: str = ""

    @property
    def over_tls(self) -> bool:
        return self.mode.startswith(("tunnel", "idle", "direct-tls"))


@dataclass(frozen=True, slots=True)
class Way:
    """How the generator gets to the origin: what it connects to, and the command that it runs under, if any."""

    peer: str
    site: Site = LOCAL
    under: tuple[str, ...] = ()

    def command(self, load: Load, generator: str) -> list[str]:
        values = (
            load.mode, self.peer, self.site.place(over_tls=load.over_tls), load.path, load.length,
            load.connections, load.warm_s, load.seconds, load.requests,
        )  # fmt: skip
        more = [load.token, load.body] if load.body else [load.token] if load.token else []
        return [*self.under, generator, *map(str, values), *more]


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured phase: what the generator saw, and by how much the meter on the proxy grew meanwhile."""

    requests: int
    seconds: float
    p50_us: int
    p99_us: int
    bytes: int
    reconnects: int
    used: float

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def build() -> str:
    """Compile the generator unless that has been done since it last changed."""
    sources, program = [HERE / name for name in ("load.c", "reply.c", "reply.h")], WORK / "load"
    if not program.exists() or program.stat().st_mtime < max(source.stat().st_mtime for source in sources):
        want_header("openssl/ssl.h", "libssl-dev")
        units = [str(source) for source in sources if source.suffix == ".c"]
        command = [need_program("gcc", "gcc"), "-O2", "-Wall", "-Wextra", "-o", str(program), *units]
        done = subprocess.run([*command, "-lssl", "-lcrypto"], capture_output=True, text=True, check=False, timeout=120)
        if done.returncode != 0:
            raise BenchError(f"load.c does not compile (is libssl-dev installed?): {done.stderr[:300]}")
    return str(program)


@contextmanager
def _generator(load: Load, way: Way) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        way.command(load, build()),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        stop(process)
        for pipe in (process.stdin, process.stdout):
            if pipe:
                pipe.close()


def measure(load: Load, way: Way, meter: Callable[[int], float]) -> Sample:
    """Warm up, then measure; *meter* is read just before and just after, with all connections still open.

    It is given the pid of what was started: the generator, or the command that the generator runs under.
    """
    with _generator(load, way) as process:
        assert process.stdin
        assert process.stdout
        if process.stdout.readline() != b"warm\n":
            raise BenchError("the load generator ended during the warm-up")
        before = meter(process.pid)
        process.stdin.write(b"\n")
        process.stdin.flush()
        line = process.stdout.readline()
        used = meter(process.pid) - before
    if not line:
        raise BenchError("the load generator ended early")
    seen: dict[str, Any] = json.loads(line)
    errors, first = seen.pop("errors"), seen.pop("first_error")
    if errors:
        raise BenchError(f"{errors} errors in {seen['requests'] + errors} requests; the first: {first}")
    if not seen["requests"]:
        raise BenchError("no request was completed")
    return Sample(used=used, **seen)
