"""`exeat serve`: its options. The gateway as a process is in exeat.serve."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from exeat.cli.options import add_policy_options, policy_sources


def add_serve_options(parser: argparse.ArgumentParser) -> None:
    """Every option has a variable too: a sidecar is configured by its environment alone."""
    parser.description = "Run the gateway: HTTP proxy, CONNECT and SOCKS5 on one port."
    parser.epilog = (
        "Every option can also be set by a variable. One variable has no option:\n"
        "  EXEAT_PROXY_AUTH=user:password    ask clients for these credentials\n"
        "\n"
        "SIGHUP, or a change of a policy or clients file, reloads it; a broken file keeps\n"
        "the last good ones. SIGTERM finishes open requests, then stops."
    )
    parser.add_argument("--port", metavar="N", help="listen on port N; 0 picks one (PROXY_PORT, default 8888)")
    parser.add_argument("--bind", metavar="ADDR", help="listen on this address (EXEAT_BIND, default 127.0.0.1)")
    parser.add_argument(
        "--audit", metavar="FILE", help="write the decisions to FILE; - is stdout (EXEAT_AUDIT, default -)"
    )
    parser.add_argument(
        "--admin", metavar="ADDR", help="serve /healthz and /metrics on a socket path or host:port (EXEAT_ADMIN, off)"
    )
    parser.add_argument("--workers", metavar="N", help="processes that share the port (EXEAT_WORKERS, default 1)")
    parser.add_argument("--sandbox", metavar="NAME", help="name to put on every record (EXEAT_SANDBOX)")
    parser.add_argument(
        "--clients",
        metavar="PATH",
        help="serve several clients, each with its own rules: a file, or a folder of them (EXEAT_CLIENTS)",
    )
    add_policy_options(parser)
    parser.set_defaults(run=_serve)


def _serve(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    from exeat.serve.settings import settings_from
    from exeat.serve.worker import serve

    settings = settings_from(vars(options), policy_sources(options), os.environ)
    worker = os.environ.get("EXEAT_WORKER_FD")
    return serve(settings, arguments, int(worker) if worker else None)
