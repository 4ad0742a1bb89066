"""Questions on the terminal, with everything: a caller who types, a jail, a gateway, and a command that would cheat."""

from __future__ import annotations

import os
import signal
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients.terminal import Terminal
from tests.support.origins.plain import Origin, answering
from tests.support.runs.running import ANYWHERE, AS_ROOT, NOBODY, PYTHON, environment, python, run_argv

SOMEBODY = NOBODY if os.geteuid() == 0 else None  # other tests here are the caller
QUIET_S = 0.7  # then a key can be an answer
# Fetches from each address of its arguments; "two" is for two at the same time.
FETCH = """
import os, sys, threading, urllib.error, urllib.request
proxy = os.environ.get("http_proxy")
for name in ("no_proxy", "NO_PROXY"):
    os.environ.pop(name, None)  # the host's loopback is asked for, not the jail's own
opener = urllib.request.build_opener(urllib.request.ProxyHandler({"http": proxy} if proxy else {}))
def fetch(where):
    try:
        print(f"got {opener.open(f'http://{where}/', timeout=30).status}", flush=True)
    except urllib.error.HTTPError as error:
        print(f"refused {error.code}", flush=True)
    except OSError as error:
        print("refused", flush=True)
for how, where in zip(sys.argv[1::2], sys.argv[2::2]):
    threads = [threading.Thread(target=fetch, args=(where,)) for _ in range(2 if how == "two" else 1)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
line = sys.stdin.readline().strip()
print(f"[{line}]")
sys.exit(7)
"""
# Tries to answer by itself: writes what a key would be, types into every terminal that it can find, and asks the
# terminal to speak for it. Then it goes where no one lets it.
CHEAT = """
import fcntl, os, socket, sys
def say(*words): print(*words, flush=True)
callers = sys.argv[1]
for path in (callers, "/dev/tty", *(f"/dev/pts/{name}" for name in os.listdir("/dev/pts")), "/dev/console"):
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOCTTY)
    except OSError as error:
        say("no", path) if path == callers else None
        continue
    same = os.fstat(descriptor).st_rdev == int(sys.argv[2])
    say("THERE", path) if same else None
    for key in b"o\\r":
        try:
            fcntl.ioctl(descriptor, 0x5412, bytes((key,)))
            say("TYPED")
        except OSError:
            pass
    os.write(descriptor, b"o\\n\\x1b[6n\\x05")
for number in range(3, 100):
    try:
        kind = os.readlink(f"/proc/self/fd/{number}")
        say("OPEN", number, kind) if os.isatty(number) and os.fstat(number).st_rdev == int(sys.argv[2]) else None
    except OSError:
        pass
os.kill(0, 28)
with socket.create_connection(("192.0.2.1", 80), timeout=20) as connection:
    connection.sendall(b"GET / HTTP/1.1\\r\\nHost: 192.0.2.1\\r\\n\\r\\n")
    say("answered", connection.recv(12))
"""


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    with Terminal(environment(TERM="dumb"), cwd=ANYWHERE) as opened:
        yield opened


@pytest.fixture
def origin() -> Iterator[Origin]:
    opened = Origin(answering(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"))
    yield opened
    opened.close()


def modes(terminal: Terminal) -> list[Any]:
    return termios.tcgetattr(terminal._master)


def press(terminal: Terminal, key: str) -> None:
    """As a person does who has read the question."""
    time.sleep(QUIET_S)
    terminal.type(key)


def place(origin: Origin) -> str:
    return f"127.0.0.1:{origin.port}"


def test_a_yes_and_a_no(terminal: Terminal, origin: Origin) -> None:
    """Two connections to one place are one question. What was typed before is no answer, but the command's."""
    before = modes(terminal)
    argv = run_argv(["--ask"], python(FETCH, "two", place(origin), "one", "bad.test", "one", "bad.test"), SOMEBODY)
    job = terminal.start(argv)
    terminal.type("only words\n")
    terminal.wait_for(f"allow {place(origin)}?")
    terminal.wait_for("CAREFUL")
    press(terminal, "y")
    terminal.wait_for("got 200", times=2)
    terminal.wait_for("allow bad.test:80?")
    assert terminal.text.count(f'asked by "{os.path.realpath(PYTHON).rpartition("/")[2]}"') == 2
    press(terminal, "n")
    assert terminal.wait(job) == ("exited", 7)
    text = terminal.text
    assert text.count("exeat: allow") == 2
    assert text.count("refused 403") == 2  # the second one without a question
    assert text.index("[only words]") < text.index("exeat: blocked")
    assert modes(terminal) == before


@pytest.mark.parametrize("jail", ["env", pytest.param("nft", marks=AS_ROOT)])
def test_other_jails(terminal: Terminal, origin: Origin, jail: str) -> None:
    job = terminal.start(run_argv(["--ask", "--jail", jail], python(FETCH, "one", place(origin))))
    terminal.wait_for(f"allow {place(origin)}?")
    press(terminal, "o")
    terminal.wait_for("got 200")
    time.sleep(QUIET_S)
    terminal.type("words\n")
    assert terminal.wait(job) == ("exited", 7)
    assert "[words]" in terminal.text


def test_the_command_cannot_answer(terminal: Terminal) -> None:
    """Not by what it writes, not through any terminal that it can reach. The question waits for the caller, in vain."""
    me = 'T=$(tty); N=$(stat -c "%Hr %Lr" $T | { read a b; echo $((a * 256 + b)); })'
    options = ["--ask", "--ask-timeout", "2"]
    argv = [f"'{each}'" if " " not in each and "\n" not in each else each for each in run_argv(options, [], SOMEBODY)]
    script = f'{me}; exec 9<>$T; exec {" ".join(argv)} "$@" $T $N'
    job = terminal.start(["sh", "-c", script, "sh", *python(CHEAT)])
    terminal.wait_for("allow 192.0.2.1:80?")
    terminal.wait_for("time is up, so it is denied")
    assert terminal.wait(job)[0] == "exited"
    assert "no /dev/pts/" in terminal.text
    assert "answered b'HTTP/1.1 403'" in terminal.text
    for word in ("THERE", "TYPED", "OPEN", "is allowed"):
        assert word not in terminal.text, terminal.text


def test_the_same_terminal_is_there_without_questions(terminal: Terminal) -> None:
    """So what the test above looks for can be found."""
    program = "import os, sys; print('there', os.isatty(os.open(sys.argv[1], os.O_RDWR)), os.isatty(9))"
    script = 'exec 9<>$(tty); exec "$@" $(tty)'
    job = terminal.start(["sh", "-c", script, "sh", *run_argv([], python(program))])
    assert terminal.wait(job) == ("exited", 0)
    assert "there True True" in terminal.text


@AS_ROOT
def test_other_names_of_the_terminal_are_taken_away(terminal: Terminal, tmp_path: Path) -> None:
    """A container has its terminal once more as /dev/console, a chroot has all terminals. Without --ask both stay."""
    program = (
        "import os, sys\n"
        "try: print('console', os.isatty(os.open(sys.argv[1] + '/console', os.O_RDWR | os.O_NOCTTY)))\n"
        "except PermissionError: print('console refused')\n"
        "print('others', os.path.exists(sys.argv[1] + '/pts/' + sys.argv[2]))"
    )
    script = (
        "set -e; mount --make-rprivate /; cd $0; touch console; mkdir pts; "
        "mount --bind $(tty) console; mount --bind /dev/pts pts; "
        '"$@" $0 $(basename $(tty)); shift 5; '
        f'"{sys.executable}" -m exeat run --ask -- "$@" $0 $(basename $(tty))'
    )
    plain = run_argv([], python(program))
    argv = ["unshare", "-m", "sh", "-c", script, str(tmp_path), *plain]
    job = terminal.start(argv)
    assert terminal.wait(job) == ("exited", 0)
    assert terminal.text == "console True\nothers True\nconsole refused\nothers False\n"


def test_streams_that_are_no_terminal_stay(terminal: Terminal, origin: Origin, tmp_path: Path) -> None:
    """A question comes to the terminal all the same, and the command can find one where it always does."""
    out = tmp_path / "out"
    program = FETCH.replace("sys.exit(7)", 'open("/dev/tty", "w").write("on the terminal\\n")')
    script = f'echo given | "$@" > {out}; echo left $?'
    argv = ["sh", "-c", script, "sh", *run_argv(["--ask"], python(program, "one", place(origin)))]
    job = terminal.start(argv)
    terminal.wait_for(f"allow {place(origin)}?")
    press(terminal, "o")
    assert terminal.wait(job) == ("exited", 0)
    assert out.read_text() == "got 200\n[given]\n"
    terminal.wait_for("on the terminal\nleft 0\n")


def test_the_size_is_the_terminals_and_a_window_that_is_closed_ends_it(terminal: Terminal) -> None:
    program = (
        "import os, signal, sys\n"
        "def show(*_): os.write(1, b'(%d, %d)\\n' % os.get_terminal_size())\n"
        "signal.signal(signal.SIGWINCH, show)\nshow()\nsys.stdin.readline()"
    )
    terminal.resize(30, 100)
    job = terminal.start(run_argv(["--ask"], python(program)))
    terminal.wait_for("(100, 30)")
    terminal.resize(40, 120)
    terminal.wait_for("(120, 40)")
    os.kill(job, 1)
    assert terminal.wait(job) == ("exited", 129)


def test_ctrl_z_stops_a_script_around_it_too(terminal: Terminal) -> None:
    """The script is in the group that the key is for, but the key is typed at the command's terminal."""
    run = run_argv(["--ask"], python("print('ready', flush=True); print('got', input()); raise SystemExit(9)"))
    job = terminal.start(["sh", "-c", '"$@"; exit $(($? + 1))', "script", *run])
    terminal.wait_for("ready")
    for _ in range(2):
        terminal.type("\x1a")
        assert terminal.wait(job) == ("stopped", signal.SIGTSTP)
        terminal.go_on(job)
    terminal.type("words\n")
    terminal.wait_for("got words")
    assert terminal.wait(job) == ("exited", 10)
