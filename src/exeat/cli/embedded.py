"""`exeat run` for a program that has a `SandboxManager`. Run as a file, by its path, with `python -I`.

What the manager was told is all that counts: rules, files and secrets that the environment names are not read here.
So a sandbox without network has none, whatever the program that embeds it was started with.

    embedded.py [--parent=PID] [--report=FD] [--outer-proxy] run OPTION... -- CMD
    embedded.py [--report=FD] examine JAIL
"""

# On the start-up path of a run, where pathlib alone costs 5 ms.
# ruff: noqa: PTH100, PTH120

from __future__ import annotations

import os
import sys
from typing import NoReturn

# What other ways to start exeat take from the environment. EXEAT_HOME only says where things are.
_NOT_READ = ("PROXY_ALLOWLIST", "EXEAT_POLICY", "EXEAT_ADD_HOSTS", "EXEAT_SECRETS_JSON")
_OUTER_PROXY = "EXEAT_OUTER_PROXY"
_PROXY_NAMES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


def _find_exeat() -> None:
    """Take exeat from where this file is, whatever else is installed, and nothing else from there before others."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    sys.path.insert(0, root)
    import exeat  # noqa: F401, PLC0415 - from here on its parts are looked for where it was found

    sys.path.pop(0)
    if root not in sys.path:
        sys.path.append(root)


def start(arguments: list[str]) -> NoReturn:
    """Do what the arguments say, and end."""
    given = {}
    while arguments and arguments[0].startswith("--"):
        name, _, value = arguments.pop(0).partition("=")
        given[name] = value
    if "--parent" in given:
        _end_with(int(given["--parent"]))
    _forget_settings()
    if "--outer-proxy" in given:
        _take_outer_proxy()
    if "--report" in given:
        _report_to(int(given["--report"]), arguments)
    from exeat.cli.main import console  # noqa: PLC0415

    sys.argv[1:] = arguments
    console()


def _end_with(parent: int) -> None:
    """The program that embeds us is the only one who looks after the command. If it is killed, so are we."""
    if sys.platform == "linux":
        import signal  # noqa: PLC0415

        from exeat.jail import libc  # noqa: PLC0415 - Linux only

        libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(2)


def _forget_settings() -> None:
    from exeat.run.scrubbing import scrub_environment  # noqa: PLC0415

    scrub_environment(name for name in _NOT_READ if name in os.environ)


def _take_outer_proxy() -> None:
    """A proxy whose URL has a password comes by the environment: everybody can read a command line."""
    url = os.environ.pop(_OUTER_PROXY, None)
    if url is None:
        print("exeat: the proxy is not in the environment: start this with env=manager.environ()", file=sys.stderr)
        os._exit(2)
    for name in _PROXY_NAMES:
        os.environ[name] = os.environ[name.lower()] = url


def _report_to(descriptor: int, arguments: list[str]) -> NoReturn:
    """Say everything there, apart from what the command says; at the end, behind a NUL, what went wrong as JSON.

    Without that end nothing is known of how the run went, and so it did not go well.
    """
    import json  # noqa: PLC0415 - when it is needed nothing can be loaded any more

    from exeat.cli.main import build_parser  # noqa: PLC0415
    from exeat.errors import ExeatError  # noqa: PLC0415

    os.set_inheritable(descriptor, False)
    report = sys.stderr = os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
    status, fields = 2, {"kind": ""}
    try:
        if arguments[0] == "examine":
            _examine(arguments[1])
            status = 0
        else:
            options = build_parser("run").parse_args(arguments)
            status = options.run(options, arguments)
    except (ExeatError, SystemExit, Exception) as error:
        fields = {name: str(getattr(error, name, "")) for name in ("public", "detail", "where", "expected", "fix")}
        fields |= {"kind": type(error).__name__, "text": str(error)}
    except KeyboardInterrupt:
        status = 130
    try:
        report.write("\0" + json.dumps(fields))
        report.flush()
    finally:
        os._exit(status)


def _examine(jail: str) -> None:
    """Raise JailError if a command could not be put into this jail."""
    from exeat.errors import JailError  # noqa: PLC0415
    from exeat.jail.select import examine  # noqa: PLC0415

    kinds = [jail]
    if jail == "auto":
        kinds = ["seatbelt"] if sys.platform == "darwin" else ["netns", *(["nft"] if os.geteuid() == 0 else [])]
    found = [examine(kind) for kind in kinds]
    if not any(each.ok for each in found):
        raise JailError(f"the {kinds[0]} jail cannot be had here", detail=found[0].why, fix=found[0].fix)


if __name__ == "__main__":
    _find_exeat()
    start(sys.argv[1:])
