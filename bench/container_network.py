"""Requests out of a container: exeat's gateway from inside one, against loopback and against sidecars with variables.

A sidecar is a proxy at the other end of a cable, in a network of its own, and a client that is told of it. Where the
engine makes no networks, a network namespace stands for the container of the client.
"""

import itertools
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.cpu import cpu_s
from bench.jail import LOOPBACK, REDIRECTED, REDIRECTED_OTHER, _gateway_meter, plan, serve_command
from bench.load import Load, Sample, Way, build, measure
from bench.origin import LOCAL
from bench.peers import MEMORY, Peer, Squid, Tinyproxy
from bench.process import WORK, BenchError, free_port, running
from bench.rows import Effort, Results, Row, rotated
from bench.startup import run_command

CONTAINER = "exeat"  # out of a container, redirected: what the others are compared with
LOOPBACK_ONLY = "exeat over loopback, as a proxy"
# Where the server may speak first: the gateway has to dial for each connection, instead of taking one that it kept.
OTHER_PORT = "exeat, a port that is not the web's"
SIDECARS: tuple[Peer, ...] = (Squid(), Tinyproxy())
ROWS = (
    Row("container-kept", "Plain HTTP, connections kept", "plain"),
    Row("container-new", "Plain HTTP, a new connection for each request", "plain-new"),
)
_numbers = itertools.count()
_OURS, _THEIRS = "198.18.7.1", "198.18.7.2"  # of the range that the generator takes for tests


def through_container(load: Load, image: str, redirected: str) -> Sample:
    """The generator runs in the container; the gateway is the same process as for every run."""
    run = [*run_command(None), "--container", image, "--mount", f"{build()}:/load:ro"]
    with TemporaryDirectory(prefix="run-", dir=WORK) as name:
        actual, way = plan(redirected, load, run, str(Path(name) / "audit.jsonl"), 0)
        return measure(actual, _with_generator(way), _gateway_meter())


def _with_generator(way: Way) -> Way:
    """Whatever the generator is called out here, in there it is /load."""

    class Inside(Way):
        def command(self, load: Load, generator: str) -> list[str]:
            return super().command(load, "/load")

    return Inside(way.peer, way.site, way.under)


def over_loopback(load: Load) -> Sample:
    with TemporaryDirectory(prefix="run-", dir=WORK) as name:
        audit, port = str(Path(name) / "audit.jsonl"), free_port()
        actual, way = plan(LOOPBACK, load, run_command(None), audit, port)
        with running(serve_command(run_command(None), audit, port), port, WORK / "exeat.log") as pid:
            return measure(actual, way, lambda _: cpu_s(pid))


@contextmanager
def other_network() -> Iterator[Sequence[str]]:
    """A network at the other end of a cable; what to put before a command that is to run in it."""
    number = next(_numbers)
    name, cable = f"bench{os.getpid()}-{number}", f"v{os.getpid()}-{number}"  # the last one's may not be gone yet
    before = ["ip", "netns", "exec", name]
    steps = [
        ["ip", "netns", "add", name],
        ["ip", "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", name],
        ["ip", "addr", "add", f"{_OURS}/24", "dev", cable],
        ["ip", "link", "set", cable, "up"],
        [*before, "ip", "addr", "add", f"{_THEIRS}/24", "dev", "eth0"],
        [*before, "ip", "link", "set", "eth0", "up"],
        [*before, "ip", "link", "set", "lo", "up"],
    ]
    try:
        for step in steps:
            done = subprocess.run(step, check=False, timeout=30, capture_output=True, text=True)
            if done.returncode:
                raise BenchError(f"{' '.join(step[:4])}: {done.stderr.strip()}")
        yield before
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=False, timeout=30)


def through_sidecar(peer: Peer, load: Load) -> Sample:
    folder = MEMORY if peer.logs_to_memory else WORK
    with other_network() as before, TemporaryDirectory(prefix="run-", dir=folder) as name:
        Path(name).chmod(0o755)
        port = free_port()
        argv, env = peer.command(port, Path(name), tunnels=False)
        config = Path(argv[-1])
        text = config.read_text()
        if isinstance(peer, Squid):
            text += f"\nhttp_port {_OURS}:{port}\nacl other src {_THEIRS}/32\n"
            text = text.replace("http_access deny all", "").replace(
                "http_access allow self", f"acl near src {_THEIRS}/32\nhttp_access allow self\nhttp_access allow near"
            ) + "http_access deny all\n"  # fmt: skip
        else:
            text += f"\nListen {_OURS}\nAllow {_THEIRS}\n"
        config.write_text(text)
        with running(argv, port, WORK / f"{peer.name}.log", env) as pid:
            return measure(load, Way(f"{_OURS}:{port}", LOCAL, tuple(before)), lambda _: cpu_s(pid))


def measure_network(image: str, effort: Effort, results: Results, *, web: bool) -> None:
    other = partial(through_container, image=image, redirected=REDIRECTED_OTHER)
    ways: list[tuple[str, Callable[[Load], Sample]]] = [(LOOPBACK_ONLY, over_loopback)]
    if web:
        ways += [(CONTAINER, partial(through_container, image=image, redirected=REDIRECTED)), (OTHER_PORT, other)]
    else:
        ways.append((CONTAINER, other))
    ways += [(f"{peer.name}, as a sidecar", partial(through_sidecar, peer)) for peer in SIDECARS]
    for number in range(effort.more_rounds):
        for row in ROWS:
            for name, work in rotated(ways, number):
                results.take(row.name, name, partial(work, effort.load(row)))
