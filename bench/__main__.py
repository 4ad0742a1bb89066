"""`python -m bench`: measure every proxy in one run and write bench/RESULTS.md."""

import argparse
import json
import shlex
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path

from bench import load, origin, report
from bench.install import say
from bench.intercept import INTERCEPT_ROWS, SECRETS_BULK, measure_intercept, measure_secrets
from bench.interceptors import interceptors
from bench.jail import measure_jail
from bench.kept import measure_kept
from bench.peers import Exeat, Mitmproxy, Peer, SandboxRuntime, all_peers
from bench.process import HERE, WORK, BenchError, raise_descriptor_limit
from bench.rows import EXTRA_ROWS, ROWS, Effort, Results, compare, measure_memory, measure_rules
from bench.sections import CONTAINERS, EMBEDDING, SCALE, VMS, write_around
from bench.startup import measure_startup


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    names = ",".join(
        (*(row.name for row in ROWS), *(row.name for row in INTERCEPT_ROWS), SECRETS_BULK.name, *EXTRA_ROWS)
    )
    parser.add_argument("--only", metavar="PEERS", help="peers to measure, with commas between")
    parser.add_argument("--rows", default=names, help=f"rows to measure (default: {names})")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a measurement (default: 3)")
    parser.add_argument("--requests", type=int, default=0, help="measure this many requests instead")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each figure (default: 3)")
    parser.add_argument("--quick", action="store_true", help="one short round: does it all work?")
    parser.add_argument("--out", type=Path, help="Markdown file (default: bench/RESULTS.md for a full run)")
    parser.add_argument("--exeat", metavar="COMMAND", help="another build of `exeat serve` to measure")
    options = parser.parse_args(argv)
    unknown = set(options.rows.split(",")) - set(names.split(","))
    if unknown:
        parser.error(f"no such row: {', '.join(sorted(unknown))}; there are {names}")
    if options.seconds <= 0 or options.rounds < 1 or options.requests < 0:
        parser.error("seconds, rounds and requests must be positive")
    if options.out is None:  # a partial run must not replace the page that is kept
        partial = options.quick or options.only or options.rows != names or options.exeat
        options.out = WORK / "partial.md" if partial else HERE / "RESULTS.md"
    return options


def is_needed(peer: str, rows: str) -> bool:
    """Is there a row among these that the peer takes part in?"""
    chosen = set(rows.split(","))
    if peer == Exeat.name or chosen & {row.name for row in ROWS}:
        return True
    if chosen & {row.name for row in INTERCEPT_ROWS} and peer in (Mitmproxy.name, SandboxRuntime.name):
        return True
    return peer == SandboxRuntime.name and "startup" in chosen


def choose(options: argparse.Namespace, results: Results) -> list[Peer]:
    """Install the peers that were asked for; one that is not available is named in the results, with the reason."""
    known = {peer.name: peer for peer in all_peers(options.exeat)}
    wanted = options.only.split(",") if options.only else [name for name in known if is_needed(name, options.rows)]
    ready: list[Peer] = []
    for name in wanted:
        try:
            if name not in known:
                raise BenchError(f"no such peer; there are {', '.join(known)}")
            results.versions[name] = known[name].prepare()
            ready.append(known[name])
        except BenchError as error:
            results.left_out[name] = str(error)
            say(f"  {name} left out: {error}")
    return ready


def main(argv: list[str]) -> int:
    options = parse_arguments(argv)
    for sign in (signal.SIGINT, signal.SIGTERM):  # both unwind, and so stop what was started
        signal.signal(sign, signal.default_int_handler)
    effort = Effort(options.rounds, options.seconds, options.requests, 1_000_000_000, 20)
    if options.quick:
        effort = Effort(1, 1.0, options.requests, 100_000_000, 5)
    began = time.monotonic()
    results = Results()
    raise_descriptor_limit()
    WORK.mkdir(exist_ok=True)
    chosen = options.rows.split(",")
    rows = [row for row in ROWS if row.name in chosen]
    intercepted = [row for row in INTERCEPT_ROWS if row.name in chosen]
    try:
        load.build()
        peers = choose(options, results)
        with origin.open_origin(effort.bulk_bytes) as web:
            if peers and rows:
                compare(rows, peers, effort, results)
            able = interceptors(peers, options.exeat)
            if able and intercepted:
                measure_intercept(intercepted, able, effort, results)
            for exeat in (peer for peer in peers if isinstance(peer, Exeat)):
                if "memory" in chosen:
                    measure_memory(exeat, results)
                if "rules" in chosen:
                    measure_rules(options.exeat, effort, results)
                if SECRETS_BULK.name in chosen:
                    measure_secrets(options.exeat, effort, results)
                if "startup" in chosen:
                    with_srt = any(isinstance(peer, SandboxRuntime) for peer in peers)
                    measure_startup(options.exeat, effort, results, with_srt=with_srt)
                if "jail" in chosen:
                    measure_jail(options.exeat, effort, results, web=web)
                if "kept" in chosen:
                    measure_kept(options.exeat, effort, results, port=origin.PLAIN_PORT)
    except BenchError as error:
        say(f"bench: {error}")
        return 2
    except KeyboardInterrupt:
        say("bench: stopped; nothing was written")
        return 130
    command = shlex.join(["python", "-m", "bench", *argv])
    write_around(
        options.out, report.page(results, rows, effort, command, origin.version()), EMBEDDING, SCALE, CONTAINERS, VMS
    )
    raw: list[dict[str, object]] = [
        {"row": row, "peer": peer, **sample.as_json()}
        for (row, peer), samples in results.samples.items()
        for sample in samples
    ]
    raw += [
        {"row": "startup", "peer": name, **asdict(start)} for name, starts in results.starts.items() for start in starts
    ]
    (WORK / f"{options.out.stem}.json").write_text(json.dumps(raw, indent=1))
    say(f"wrote {options.out} after {time.monotonic() - began:.0f} s")
    return 1 if results.failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
