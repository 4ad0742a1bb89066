"""Child processes that are always stopped again, and the places where their files go."""

import os
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
WORK = HERE / ".work"
MAX_DESCRIPTORS = 16384


class BenchError(Exception):
    """Something needed for a measurement is missing; the text is shown in the results."""


def raise_descriptor_limit() -> None:
    """Room for 1,000 tunnels in every child. Capped: some proxies allocate a table of the whole limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_listening(port: int) -> bool:
    with closing(socket.socket()) as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def output_of(*argv: str) -> str:
    """What a command prints, for version lines; stderr too, since nginx and java write it there."""
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60, check=False)
    return done.stdout.strip()


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process we started and everything in its session (start_new_session made that one group)."""
    for sign, patience_s in ((signal.SIGTERM, 3.0), (signal.SIGKILL, 5.0)):
        try:
            os.killpg(process.pid, sign)
        except ProcessLookupError:
            pass
        try:
            process.wait(patience_s)
        except subprocess.TimeoutExpired:
            continue
        break
    try:  # helpers that outlive their parent
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


@contextmanager
def running(
    argv: Sequence[str], port: int, log: Path, env: Mapping[str, str] | None = None, patience_s: float = 30
) -> Iterator[int]:
    """Start a server, wait until it listens on *port*, yield its pid, and stop it whatever happens."""
    if is_listening(port):
        raise BenchError(f"port {port} is taken by another program")
    with log.open("wb") as sink:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env=None if env is None else {**os.environ, **env},
            cwd=ROOT,
            start_new_session=True,  # Ctrl-C reaches us alone, and we stop it
        )
    try:
        give_up = time.monotonic() + patience_s
        while not is_listening(port):
            if process.poll() is not None or time.monotonic() > give_up:
                lines = log.read_text(errors="replace").strip().splitlines() or ["no output"]
                raise BenchError(f"did not start: {lines[-1][:200].replace(str(ROOT), '.')}")
            time.sleep(0.05)
        yield process.pid
    finally:
        stop(process)
