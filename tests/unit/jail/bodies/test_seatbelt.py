"""The Seatbelt profile as text: what it says, rule by rule, and that no path can say anything else."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exeat.errors import JailError
from exeat.jail.bodies.seatbelt import SANDBOX_EXEC, build_profile, quote, wrap_command
from exeat.jail.select import choose, open_jail

Form = list["Form"] | str
_TOKEN = re.compile(r'\s*(?:(?P<open>\()|(?P<close>\))|(?P<string>"(?:[^"\\]|\\.)*")|(?P<word>[^\s()";]+))', re.DOTALL)


def parse(text: str) -> list[Form]:
    """The profile's s-expressions. Fails on anything unbalanced, unquoted or left over."""
    stack: list[list[Form]] = [[]]
    at = 0
    while text[at:].strip():
        token = _TOKEN.match(text, at)
        assert token is not None, f"not a token: {text[at : at + 20]!r}"
        at = token.end()
        if token["open"]:
            stack.append([])
        elif token["close"]:
            assert len(stack) > 1, "a closing bracket too many"
            done = stack.pop()
            stack[-1].append(done)
        else:
            stack[-1].append(token["string"] or token["word"])
    assert len(stack) == 1, "a closing bracket is missing"
    return stack[0]


def rules(text: str, operation: str) -> list[list[Form]]:
    """All rules about an operation, in order."""
    return [form for form in parse(text) if isinstance(form, list) and operation in form[1:]]


def test_the_network_is_denied_and_one_port_of_loopback_allowed() -> None:
    profile = build_profile(50_123)
    forms = parse(profile)
    assert forms[:3] == [["version", "1"], ["allow", "default"], ["deny", "network*"]]
    about_network = [form for form in forms if isinstance(form, list) and any("network" in str(part) for part in form)]
    # The last that matches decides, so the order is part of the promise.
    assert about_network == [
        ["deny", "network*"],
        ["allow", "network-outbound", ["remote", "tcp", '"localhost:50123"']],
    ]


def test_names_cannot_be_asked_for_by_a_service() -> None:
    first, allowed, denied = rules(build_profile(1), "mach-lookup")
    assert first == ["deny", "mach-lookup"]
    assert allowed[:2] == ["allow", "mach-lookup"]
    assert denied[:2] == ["deny", "mach-lookup"]
    let_in = {str(name) for _, name in map(list, allowed[2:])}
    assert not [name for name in let_in if re.search("dns|responder|url|launch|network|nehelper|proxy", name, re.I)]
    assert ["global-name", '"com.apple.dnssd.service"'] in denied
    assert ["global-name", '"com.apple.mDNSResponder"'] in denied


def test_nobody_outside_is_asked_to_do_it_instead() -> None:
    forms = parse(build_profile(1))
    for operation in ("appleevent-send", "job-creation", "lsopen"):
        assert ["deny", operation] in forms


def test_named_sockets_stay_and_exeats_own_files_are_hidden() -> None:
    profile = build_profile(1, unix=["/tmp/a.sock"], hidden_files=["/p/rules.toml"], hidden_folders=["/s/exeat"])
    assert ["allow", "network-outbound", ["literal", '"/tmp/a.sock"']] in parse(profile)
    assert rules(profile, "file-read*") == [
        ["deny", "file-read*", "file-write*", ["literal", '"/p/rules.toml"']],
        ["deny", "file-read*", "file-write*", ["subpath", '"/s/exeat"']],
    ]


def test_nothing_on_the_way_to_what_is_hidden_can_be_moved() -> None:
    """It would take what is hidden with it, to a path that no rule is about."""
    profile = build_profile(1, hidden_files=["/a/b/rules.toml"], hidden_folders=["/a/s/t/exeat"])
    moved = rules(profile, "file-write-unlink")
    assert [form[0] for form in moved] == ["deny"] * 4
    assert [form[2] for form in moved] == [["literal", f'"{path}"'] for path in ("/a/b", "/a", "/a/s/t", "/a/s")]


HOSTILE = [
    '/tmp/a")) (allow network*) (deny file-read* (literal "/b',
    "/tmp/back\\slash",
    "/tmp/ends with \\",
    '/tmp/\\"',
    "/tmp/(brackets) ; comment #| x |#",
    "/tmp/ünïcode 文",
]


@pytest.mark.parametrize("path", HOSTILE)
def test_a_hostile_path_stays_one_string(path: str) -> None:
    profile = build_profile(1, unix=[path], hidden_files=[path], hidden_folders=[path])
    like = "/x" * path.count("/")  # as many folders on the way
    plain = build_profile(1, unix=[like], hidden_files=[like], hidden_folders=[like])
    assert _shape(parse(profile)) == _shape(parse(plain))
    assert ["allow", "network-outbound", ["literal", quote(path)]] in parse(profile)
    assert re.sub(r"\\(.)", r"\1", quote(path)[1:-1]) == path


def _shape(form: Form) -> object:
    """A form without the contents of its strings."""
    if isinstance(form, list):
        return [_shape(part) for part in form]
    return '"' if form.startswith('"') else form


@given(st.text(alphabet=st.characters(exclude_categories=["Cs", "Cc"])))
def test_any_text_stays_one_string(value: str) -> None:
    quoted = quote(value)
    assert parse(quoted) == [quoted]
    assert re.sub(r"\\(.)", r"\1", quoted[1:-1], flags=re.DOTALL) == value


@pytest.mark.parametrize("path", ["/a\0b", "/a\nb", "/a\x1bb", "/a\x7fb", "/a\udcffb"])
def test_what_cannot_be_said_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="a path"):
        build_profile(1, hidden_files=[path])


@pytest.mark.parametrize("port", [0, -1, 65_536])
def test_only_a_port_is_a_port(port: int) -> None:
    with pytest.raises(ValueError, match="no port"):
        build_profile(port)


def test_the_command_line_keeps_its_words() -> None:
    argv = ["sh", "-c", "echo (allow network*)"]
    assert wrap_command("(version 1)", argv) == [SANDBOX_EXEC, "-p", "(version 1)", *argv]


def test_elsewhere_it_is_an_error_that_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    with pytest.raises(JailError) as problem:
        choose("seatbelt")
    assert str(problem.value).splitlines()[:2] == ["the seatbelt jail needs macOS", "  why: this is linux"]
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr("exeat.jail.bodies.seatbelt.SANDBOX_EXEC", "/no/such/program")
    with pytest.raises(JailError, match="sandbox-exec"):
        open_jail(*choose("auto"))


# Names that only Linux has. Without them, and with another name for the system, `exeat run` must still be loaded.
PRETEND = """
import os, select, signal, socket, sys
for module, names in {
    os: ["O_PATH", "O_TMPFILE", "memfd_create", "pidfd_open", "sched_getaffinity", "splice", "eventfd"],
    select: ["epoll", "EPOLLIN"],
    signal: ["sigwaitinfo", "sigtimedwait", "SIGRTMIN", "SIGRTMAX", "SIGPWR", "SIGSTKFLT"],
    socket: ["AF_NETLINK", "AF_PACKET", "AF_VSOCK", "AF_ALG", "SOCK_CLOEXEC", "SOCK_NONBLOCK", "SO_BINDTODEVICE"],
}.items():
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
sys.platform = "darwin"
"""


def pretend_macos(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PRETEND + program], capture_output=True, text=True, timeout=30, check=False
    )


def test_run_is_loaded_without_anything_of_linux() -> None:
    program = """
import exeat.run.main, exeat.run.lifecycle, exeat.jail.bodies.seatbelt, exeat.jail.bodies.env
from exeat.jail.select import examine
for kind in ("netns", "nft"):
    assert not examine(kind).ok, kind
print(examine("seatbelt").why)
"""
    done = pretend_macos(program)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "the seatbelt jail needs sandbox-exec: there is no /usr/bin/sandbox-exec\n"


@pytest.mark.parametrize("jail", ["netns", "nft"])
def test_jails_of_linux_are_errors_on_macos(jail: str) -> None:
    done = pretend_macos(f"from exeat.cli.main import main\nsys.exit(main(['run', '--jail', '{jail}', '--', 'true']))")
    assert done.returncode == 2
    assert done.stderr.startswith(f"exeat: the {jail} jail needs Linux\n")


def test_macos_uses_it_by_itself_and_never_another() -> None:
    done = pretend_macos("from exeat.cli.main import main\nsys.exit(main(['run', '--', 'true']))")
    assert done.returncode == 2
    assert done.stderr.startswith("exeat: the seatbelt jail needs sandbox-exec\n")


def test_the_command_is_started_under_the_profile_of_the_gateways_port() -> None:
    """With a program in sandbox-exec's place that shows what it was given, on a system that only seems to be macOS."""
    program = """
import exeat.jail.bodies.seatbelt as there
there.check_here = lambda: None
show = ["/bin/sh", "-c", 'echo "$1"; echo "$HTTP_PROXY"; shift; exec "$@"', "sh"]
there.wrap_command = lambda profile, argv: [*show, profile, *argv]
from exeat.cli.main import main
sys.exit(main(["run", "--", "sh", "-c", "exit 9"]))
"""
    done = pretend_macos(program)
    assert done.returncode == 9, done.stderr
    assert done.stderr == ""
    profile, _, url = done.stdout.rpartition("\n\n")
    port = re.fullmatch(r"http://exeat:[0-9a-f]{32}@127\.0\.0\.1:(\d+)\n", url)
    assert port is not None
    assert ["allow", "network-outbound", ["remote", "tcp", f'"localhost:{port[1]}"']] in parse(profile)
