"""The `exeat` command: parse, call, print. Exit status 2 means that nothing was started."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

import exeat
from exeat.errors import ConfigError, ExeatError, JailError

if TYPE_CHECKING:
    from exeat.sources import RuleSources


def console() -> NoReturn:
    """The program `exeat`. Ends at once: taking an interpreter apart in order costs 5 ms, and nothing here needs it."""
    try:
        status = main()
    except KeyboardInterrupt:  # so early that nothing was started
        status = 130
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:  # closed by the caller
                stream.flush()
        except OSError:
            status = status or 1
    os._exit(status)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    options = _build_parser(arguments[0] if arguments else "").parse_args(arguments)
    try:
        status: int = options.run(options, arguments)
    except (ConfigError, JailError) as error:
        print(f"exeat: {error}", file=sys.stderr)
        return 2
    except ExeatError as error:
        detail = f"\n  {error.detail}" if error.detail else ""
        print(f"exeat: {error.public}{detail}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output has left, which is its right. Keep Python from complaining at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return status


def _build_parser(command: str = "") -> argparse.ArgumentParser:
    """The parser. For a command that is known, only with the options of that one: 4 ms less at every start."""
    parser = argparse.ArgumentParser(
        prog="exeat",
        description="Run code you do not trust, and decide what it may reach.",
        epilog="Nothing is allowed unless a rule says so.\n"
        "A rule is [!]HOST[:PORTS] [OPTION...], as in\n"
        "  api.github.com              this host, ports 80 and 443\n"
        "  *.github.com:443            any subdomain, not github.com itself\n"
        "  .github.com                 github.com and any subdomain\n"
        "  [2001:db8::1]:8000-8010     an address needs a rule of its own\n"
        "  !gist.github.com            a denial beats every allowance",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"exeat {exeat.__version__}")
    # With `prog` given, argparse need not format a usage to find it out: 4 ms less again.
    commands = parser.add_subparsers(metavar="COMMAND", required=True, prog="exeat")
    known = {
        "run": _add_run,
        "check": _add_check,
        "serve": _add_serve,
        "secrets": _add_secrets,
        "audit": _add_audit,
        "doctor": _add_doctor,
    }
    for name, add in known.items():
        if command in (name, "") or command not in known:
            add(commands)
    return parser


def _add_policy_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "policy", "all of these add up; PROXY_ALLOWLIST, EXEAT_POLICY and EXEAT_ADD_HOSTS too"
    )
    group.add_argument(
        "--allow", "--allow-net", metavar="RULE", action="append", default=[], help="allow what RULE names (repeatable)"
    )
    group.add_argument("--deny", metavar="RULE", action="append", default=[], help="deny it, whatever else allows it")
    group.add_argument(
        "--policy", metavar="FILE", action="append", default=[], help="rules, hosts and limits: TOML, JSON"
    )
    group.add_argument(
        "--add-host", metavar="NAME:ADDR", action="append", default=[], help="take ADDR for NAME instead of asking DNS"
    )


def policy_files(options: argparse.Namespace) -> tuple[str, ...]:
    """The files that rules are read from."""
    given = os.environ.get("EXEAT_POLICY")
    return (given, *options.policy) if given else tuple(options.policy)


def policy_sources(options: argparse.Namespace) -> RuleSources:
    """The rule sources of a command line and its environment."""
    from exeat.sources import RuleSources  # noqa: PLC0415 - loaded when a command needs it, not for --help

    return RuleSources(
        allow=tuple(options.allow),
        deny=tuple(options.deny),
        files=policy_files(options),
        add_hosts=tuple(options.add_host),
        allowlist=os.environ.get("PROXY_ALLOWLIST", ""),
        env_hosts=os.environ.get("EXEAT_ADD_HOSTS", ""),
        secrets_files=tuple(getattr(options, "secrets", ())),
        env_secrets=os.environ.get("EXEAT_SECRETS_JSON", ""),
        intercept=getattr(options, "intercept", None) or "",
    )


def _add_run(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    from exeat.cli.run import add_run_options, run_command  # noqa: PLC0415 - small, and only for its help

    parser = commands.add_parser(
        "run",
        help="run a command that reaches only what is allowed",
        usage="exeat run [--allow RULE]... [OPTION...] -- CMD [ARG...]",
        description="Run a command in a jail. It reaches what the rules allow and nothing else,\n"
        "whether or not it knows of proxies. No root is needed.",
        epilog="exit status: the command's; 128+N if signal N ended it; 126 or 127 if it could\n"
        "not be started; 2 if exeat started nothing",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_policy_options(parser)
    add_run_options(parser)
    parser.set_defaults(run=lambda options, arguments: run_command(options, policy_sources, policy_files))


def _add_check(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "check",
        help="say whether a URL would be allowed, and why",
        description="Say whether a URL would be allowed, by which rule, and what would have to\n"
        "change. Asks nobody: what a name resolves to is judged when a connection is\n"
        "made.",
        epilog="exit status: 0 allowed, 1 denied, 2 unusable",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("target", metavar="URL|HOST:PORT", help="https://api.github.com/ or api.github.com:443")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--method", default="GET", help="HTTP method for URLs (default: %(default)s)")
    _add_policy_options(parser)
    parser.add_argument(
        "--secrets", "--config", metavar="FILE", action="append", default=[], help="their hosts are allowed: JSON, TOML"
    )

    def run(options: argparse.Namespace, arguments: Sequence[str]) -> int:
        from exeat.cli.check import check  # noqa: PLC0415

        loaded = policy_sources(options).load()
        return check(loaded.policy, loaded.intercept, options.target, method=options.method, as_json=options.json)

    parser.set_defaults(run=run)


def _add_serve(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "serve",
        help="run the gateway alone, as a sidecar",
        description="Run the gateway: HTTP proxy, CONNECT and SOCKS5 on one port.",
        epilog="Every setting can be a variable. Those without an option:\n"
        "  EXEAT_PROXY_AUTH=user:password    ask clients for these credentials\n"
        "\n"
        "SIGHUP, or a change of a policy file, reloads the rules; a broken file keeps\n"
        "the last good ones. SIGTERM finishes what is under way and stops.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--port", metavar="N", help="listen on port N; 0 picks one (PROXY_PORT, default 8888)")
    parser.add_argument("--bind", metavar="ADDR", help="listen on this address (EXEAT_BIND, default 127.0.0.1)")
    parser.add_argument(
        "--audit", metavar="FILE", help="write the decisions there; - is stdout (EXEAT_AUDIT, default -)"
    )
    parser.add_argument(
        "--admin", metavar="ADDR", help="serve /healthz and /metrics on a socket path or host:port (EXEAT_ADMIN, off)"
    )
    parser.add_argument("--workers", metavar="N", help="processes that share the port (EXEAT_WORKERS, default 1)")
    parser.add_argument("--sandbox", metavar="NAME", help="name to put on every record (EXEAT_SANDBOX)")
    _add_policy_options(parser)

    def run(options: argparse.Namespace, arguments: Sequence[str]) -> int:
        from exeat.serve.main import serve  # noqa: PLC0415
        from exeat.serve.settings import settings_from  # noqa: PLC0415

        settings = settings_from(vars(options), policy_sources(options), os.environ)
        worker = os.environ.get("EXEAT_WORKER_FD")
        return serve(settings, arguments, int(worker) if worker else None)

    parser.set_defaults(run=run)


def _add_secrets(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    from exeat.cli.secrets import add_secrets_actions  # noqa: PLC0415 - its help is long, and only for this command

    parser = commands.add_parser("secrets", help="check a secrets file", description="Work with secrets files.")
    add_secrets_actions(parser)


def _add_audit(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("audit", help="check an audit log", description="Work with audit logs.")
    actions = parser.add_subparsers(metavar="ACTION", required=True, prog="exeat audit")
    verify = actions.add_parser(
        "verify",
        help="find any edit, cut or reorder in a log",
        description="Check the hash chain of a log. Finds every changed, removed, added or moved\n"
        "line. A cut tail shows only against a head hash kept elsewhere (--head): the\n"
        "chain has no key.",
        epilog="exit status: 0 intact, 1 not intact, 2 unusable",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verify.add_argument("files", metavar="FILE", nargs="+", help="the log; rotated parts oldest first, or found alone")
    verify.add_argument("--head", metavar="HASH", help="the hash that the last line must have")

    def run(options: argparse.Namespace, arguments: Sequence[str]) -> int:
        from exeat.cli.audit import verify_logs  # noqa: PLC0415

        return verify_logs(options.files, options.head)

    verify.set_defaults(run=run)


def _add_doctor(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "doctor",
        help="say which jails this machine can enforce, and try them",
        description="Say which jails can be had here, and why not. With --attack, try to get out of one:\n"
        "every probe runs once without a jail, where it must work, and once inside.\n"
        "Nothing is sent beyond this machine.",
        epilog="exit status: 0 contained, 1 something got out or nothing contains, 2 unusable",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--attack", action="store_true", help="run the escape corpus and print a scorecard")
    parser.add_argument("--jail", choices=("netns", "nft", "env"), default="netns", help="what to attack (%(default)s)")
    parser.add_argument(
        "--class", dest="groups", metavar="NAME", action="append", default=[], help="attack by this class (repeatable)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")

    def run(options: argparse.Namespace, arguments: Sequence[str]) -> int:
        from exeat.cli.doctor import doctor, doctor_attack  # noqa: PLC0415

        if options.attack:
            return doctor_attack(options.jail, options.groups, as_json=options.json)
        return doctor(as_json=options.json)

    parser.set_defaults(run=run)
