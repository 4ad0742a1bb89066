"""The row `jail`: the gateway reached from inside a jail, compared with the same gateway reached over loopback."""

import shlex
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.cpu import cpu_s, process_tree
from bench.install import say
from bench.load import Load, Sample, Way, measure
from bench.origin import LOCAL, PLAIN_PORT, TLS_PORT, WEB_HOST, WEB_PORTS, Site
from bench.process import WORK, BenchError, free_port, running
from bench.rows import Effort, Results, Row, rotated
from bench.startup import run_command
from exeat.jail.net.network import GATEWAY_PORT

WEB = Site("web.test", *WEB_PORTS)
OTHER = Site("origin.test", PLAIN_PORT, TLS_PORT)
RULES = (
    "--allow", WEB.host, "--add-host", f"{WEB.host}:{WEB_HOST}",
    "--allow", OTHER.place(over_tls=False), "--allow", OTHER.place(over_tls=True),
    "--add-host", f"{OTHER.host}:{LOCAL.host}",
)  # fmt: skip
LOOPBACK, EXPLICIT, REDIRECTED = "loopback, as a proxy", "jail, as a proxy", "jail, redirected"
# Not the web's ports, where the gateway has to dial before it knows what the client says.
REDIRECTED_OTHER = "jail, redirected, other port"
WAYS = (LOOPBACK, EXPLICIT, REDIRECTED, REDIRECTED_OTHER)
JAIL_ROWS = (
    Row("jail-kept", "Plain HTTP, connections kept", "plain"),
    Row("jail-new", "Plain HTTP, a new connection for each request", "plain-new"),
    Row("jail-bulk", "TLS, a large download over one connection", "tunnel", connections=1),
)
# The same work for a client that knows of no proxy.
WITHOUT_PROXY = {"plain": "direct", "plain-new": "direct-new", "tunnel": "direct-tls"}


def plan(way: str, load: Load, run: list[str], audit: str, port: int | str) -> tuple[Load, Way]:
    """What the generator does on this way, and under which command. *port* is the loopback gateway's."""
    if way == LOOPBACK:
        return load, Way(f"127.0.0.1:{port}", OTHER)
    under = (*run, *RULES, "--audit", audit)
    if way == EXPLICIT:
        return load, Way(f"127.0.0.1:{GATEWAY_PORT}", OTHER, (*under, "--"))
    site = WEB if way == REDIRECTED else OTHER
    direct = replace(load, mode=WITHOUT_PROXY[load.mode])
    return direct, Way(site.place(over_tls=direct.over_tls), site, (*under, "--no-proxy-env", "--"))


def serve_command(run: list[str], audit: str, port: int | str) -> list[str]:
    return [*run[:-1], "serve", *RULES, "--port", str(port), "--audit", audit]


def _namespaces(pid: int | str) -> list[Path]:
    return [Path(f"/proc/{pid}/ns/{kind}").readlink() for kind in ("net", "pid", "mnt")]


def gateway_of(runner: int) -> int:
    """The one process under `exeat run` that lives outside the jail; who keeps files hidden there sees its files."""
    outside = []
    for pid in process_tree(runner)[1:]:
        try:
            if _namespaces(pid) == _namespaces("self"):
                outside.append(pid)
        except OSError:
            continue  # it has ended, or hides from us, which only those inside do
    if len(outside) != 1:
        raise BenchError(f"{len(outside)} processes of exeat run are outside its jail, not one")
    return outside[0]


def _gateway_meter() -> Callable[[int], float]:
    found: list[int] = []

    def read(runner: int) -> float:
        if not found:
            found.append(gateway_of(runner))
        return cpu_s(found[0])

    return read


def _through(way: str, load: Load, run: list[str]) -> Sample:
    with TemporaryDirectory(prefix="run-", dir=WORK) as name, ExitStack() as stack:
        audit = str(Path(name) / "audit.jsonl")
        port = free_port()
        actual, route = plan(way, load, run, audit, port)
        if way == LOOPBACK:
            pid = stack.enter_context(running(serve_command(run, audit, port), port, WORK / "exeat.log"))
            return measure(actual, route, lambda _: cpu_s(pid))
        return measure(actual, route, _gateway_meter())


def measure_jail(exeat: str | None, effort: Effort, results: Results, *, web: bool) -> None:
    """All ways take turns in every round, each with a gateway of its own; the target is a small difference."""
    say("the gateway from inside a jail")
    try:
        run = run_command(exeat)
    except BenchError as error:
        results.failures["jail", "exeat"] = str(error)
        return
    if not web:
        reason = f"ports {WEB_PORTS[0]} and {WEB_PORTS[1]} of {WEB_HOST} are not available"
        results.failures |= {(row.name, REDIRECTED): reason for row in JAIL_ROWS}
    for number in range(effort.more_rounds):
        for row in JAIL_ROWS:
            for way in rotated(WAYS, number):
                results.take(row.name, way, partial(_through, way, effort.load(row), run))


def shown_commands(row: Row, effort: Effort) -> list[tuple[str, str]]:
    """The commands behind the figures of a row, for the report: without paths, and the rules cut short."""
    shown = []
    for way in WAYS:
        load, route = plan(way, effort.load(row), ["exeat", "run"], "FILE", "PORT")
        command = shlex.join(route.command(load, "load"))
        if way == LOOPBACK:
            command = f"{shlex.join(serve_command(['exeat', 'run'], 'FILE', 'PORT'))}` and `{command}"
        shown.append((way, command.replace(shlex.join(RULES), "RULES")))
    return shown
