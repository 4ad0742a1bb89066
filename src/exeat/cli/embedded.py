"""`exeat run` for a program that has a `SandboxManager`. Run as a file, by its path, with `python -I`.

What the manager was told is all that counts: rules, files and secrets that the environment names are not read here.
So a sandbox without network has none, whatever the program that embeds it was started with.

The command's environment is not ours. It comes apart from it, and decides nothing outside of the jail.

    embedded.py [OWN] --parent=PID --report=FD [--environ=FD,BYTES] run OPTION... -- CMD
    embedded.py [OWN] --wrapped run OPTION... -- CMD
    embedded.py --parent=PID --report=FD examine JAIL
    embedded.py --parent=PID --starter=FD [USE]...

OWN is [--own=NAME[=VALUE]]... [--outer-proxy]. The last one starts others: what it forks does as the first ones, from
their words but --parent.
"""

# On the start-up path of a run, where pathlib alone costs 5 ms.
# ruff: noqa: PTH100, PTH120

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, NoReturn, TextIO

if TYPE_CHECKING:
    from exeat.cli.parser import CommandParser

Environ = dict[bytes, bytes]

# What other ways to start exeat take from the environment. EXEAT_HOME only says where things are.
_NOT_READ = ("PROXY_ALLOWLIST", "EXEAT_POLICY", "EXEAT_ADD_HOSTS", "EXEAT_PRIVATE_NETWORKS", "EXEAT_SECRETS_JSON")
_OUTER_PROXY = "EXEAT_OUTER_PROXY"
_PROXY_NAMES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
# Variables that make libraries and interpreters load other code, or resolve names otherwise. Not for what we start
# outside of the jail, nor for libraries that we have not loaded yet.
_CODE_PREFIXES = (b"LD_", b"DYLD_", b"PYTHON", b"OPENSSL_")
_CODE_NAMES = frozenset((
    b"GCONV_PATH", b"LOCPATH", b"GLIBC_TUNABLES", b"HOSTALIASES", b"LOCALDOMAIN", b"RES_OPTIONS", b"BASH_ENV", b"ENV",
    b"SHELLOPTS", b"BASHOPTS", b"NODE_OPTIONS", b"NODE_PATH", b"PERL5OPT", b"PERL5LIB", b"PERLLIB", b"RUBYOPT",
    b"RUBYLIB", b"JAVA_TOOL_OPTIONS", b"_JAVA_OPTIONS", b"JDK_JAVA_OPTIONS",
))  # fmt: skip
# Of each text of an error. All of them together must fit into what the manager keeps of a report's end.
_MAX_TEXT = 2_000


def _find_exeat() -> None:
    """Take exeat from where this file is, whatever else is installed, and nothing else from there before others."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    sys.path.insert(0, root)
    import exeat  # noqa: F401 - from here on its parts are looked for where it was found

    sys.path.pop(0)
    if root not in sys.path:
        sys.path.append(root)


def start(arguments: list[str]) -> NoReturn:
    """Do what the arguments say, and end."""
    if sys.platform != "win32":
        import signal

        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if it is ignored, no one learns how a child has ended
    given, own = take_own_words(arguments)
    if "--parent" in given:
        _end_with(int(given["--parent"]))
    if "--starter" in given:
        from exeat.cli.program.starter import serve  # for programs that run many commands

        serve(int(given["--starter"]), arguments)
    environ: Environ | None = None
    if "--environ" in given:
        environ = _read_environ(*map(int, given["--environ"].split(",")))
    elif "--wrapped" in given:
        environ = _take_apart()
    settle_environ(own, environ)
    if "--outer-proxy" in given:
        take_outer_proxy(environ)
    if "--report" in given:
        descriptor = int(given["--report"])
        os.set_inheritable(descriptor, False)
        sys.stderr = open_report(descriptor)
        report(lambda summaries: _act(arguments, environ, summaries))
    from argparse import Namespace

    from exeat.cli.main import console

    sys.argv[1:] = arguments
    console(Namespace(environ=environ))


def take_own_words(arguments: list[str]) -> tuple[dict[str, str], list[str]]:
    """Those before `run`, taken away from there; and what OWN says."""
    given, own = {}, []
    while arguments and arguments[0].startswith("--"):
        name, _, value = arguments.pop(0).partition("=")
        given[name] = value
        if name == "--own":
            own.append(value)
    return given, own


def _end_with(parent: int) -> None:
    """The program that embeds us is the only one who looks after the command. If it is killed, so are we."""
    if sys.platform == "linux":
        import signal

        from exeat.jail import libc

        libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(2)


def _read_environ(descriptor: int, length: int) -> Environ:
    from exeat.errors import ExeatError
    from exeat.jail.handed import read_environ

    try:
        environ = read_environ(descriptor, length)
        os.close(descriptor)
        return environ
    except ExeatError as error:
        print(f"exeat: {error.public}", file=sys.stderr)
        os._exit(2)


def _take_apart() -> Environ:
    """Whoever starts a wrapped command chooses one environment for both. All of it is the command's; what we keep of
    it loads no code. The dynamic loader has read it before us: its variables have had their effect on this process.
    """
    from exeat.jail.environment import sets_locale_itself

    environ = dict(os.environb)
    if environ.get(b"LC_CTYPE") == b"C.UTF-8" and sets_locale_itself():
        del environ[b"LC_CTYPE"]
    for name in environ:
        if name.startswith(_CODE_PREFIXES) or name in _CODE_NAMES:
            del os.environb[name]
    return environ


def settle_environ(own: list[str], environ: Environ | None) -> None:
    _set_own(own)
    _forget_settings(environ)


def _set_own(own: list[str]) -> None:
    """Variables of ours that the manager has decided on: NAME=VALUE, or a NAME that is not to be set."""
    for item in own:
        name, equals, value = item.partition("=")
        if equals:
            os.environ[name] = value
        else:
            os.environ.pop(name, None)


def _forget_settings(environ: Environ | None) -> None:
    from exeat.run.gateway_process.scrubbing import scrub_environment

    scrub_environment([name for name in _NOT_READ if name in os.environ or name.encode() in (environ or {})], environ)


def take_outer_proxy(environ: Environ | None) -> None:
    """A proxy whose URL has a password comes by the environment: every user can read a command line."""
    url = os.environ.pop(_OUTER_PROXY, None)
    if url is None:
        print("exeat: the proxy is not in the environment: start this with env=manager.environ()", file=sys.stderr)
        os._exit(2)
    for name in (each for upper in _PROXY_NAMES for each in (upper, upper.lower())):
        if environ is None:
            os.environ[name] = url
        else:
            environ[name.encode()] = os.fsencode(url)


def open_report(descriptor: int) -> TextIO:
    return os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace", closefd=False)


def _act(arguments: list[str], environ: Environ | None, summaries: list[str]) -> int:
    from argparse import Namespace

    if arguments[0] == "examine":
        _examine(arguments[1])
        return 0
    options = run_parser().parse(arguments, Namespace(environ=environ, on_summary=summaries.append))
    status: int = options.run(options, arguments)
    return status


def report(act: Callable[[list[str]], int]) -> NoReturn:
    """Standard error is for all that is not the command's. At its end, behind a NUL: what went wrong, as JSON.

    Without that end nothing is known of how the run went, and so it did not go well.
    """
    import json

    from exeat.errors import ExeatError
    from exeat.run.sealing import is_sealed

    status, fields = 2, {"kind": ""}
    summaries: list[str] = []
    try:
        status = act(summaries)
    except (ExeatError, SystemExit, Exception) as error:
        fields = _describe(error, is_sealed)
    except KeyboardInterrupt:
        status = 130
    try:
        run = {"summary": "".join(summaries[-1:]), "status": status}
        sys.stderr.write("\0" + json.dumps({**fields, **run}, ensure_ascii=False))
        sys.stderr.flush()
        # Who reads it, and what the command wrote, need not wait for our memory to be given back.
        os.closerange(0, min(3, sys.stderr.fileno()))
        os.close(sys.stderr.fileno())
        if sys.platform == "linux":
            os.sched_yield()  # nor until this processor is free
    finally:
        os._exit(status)


@cache
def run_parser() -> CommandParser:
    """It takes 4 ms to make, so a starter makes it once. It keeps nothing of what it has parsed."""
    from exeat.cli.main import build_parser

    return build_parser("run")


def _describe(error: BaseException, is_sealed: Callable[[], bool]) -> dict[str, str]:
    """`started`: it came when the command ran, or had run."""
    names = ("public", "detail", "where", "expected", "fix")
    texts: Mapping[str, str] = {name: str(getattr(error, name, "")) for name in names} | {"text": str(error)}
    fields = {name: text[:_MAX_TEXT] for name, text in texts.items()}
    return fields | {"kind": type(error).__name__, "started": "yes" if is_sealed() else ""}


def _examine(jail: str) -> None:
    """Raise JailError if a command could not be put into this jail."""
    from exeat.errors import JailError
    from exeat.jail.select import choose, examine

    kinds = [body.kind for body in choose(jail)]
    found = [examine(kind) for kind in kinds]
    if not any(each.ok for each in found):
        raise JailError(f"the {kinds[0]} jail does not work here", detail=found[0].why, fix=found[0].fix)


if __name__ == "__main__":
    _find_exeat()
    start(sys.argv[1:])
