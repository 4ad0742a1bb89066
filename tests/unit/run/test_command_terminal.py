"""Questions on a real terminal, between a caller who types and a command that has a terminal of its own."""

from __future__ import annotations

import os
import signal
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients.terminal import Terminal
from tests.support.gateways.scene import wait_until
from tests.support.runs.asked import QUIET_S, FakeGateway, asked_argv, fake_gateway
from tests.support.runs.running import children_of, environment, python

# Takes the keys one by one, as editors do, and says which; USR1 makes it write; ends at "q".
RAW = """
import os, signal, tty
tty.setraw(0)
signal.signal(signal.SIGUSR1, lambda *_: os.write(1, b"(written)"))
os.write(1, b"up%d|" % os.getpid())
while (key := os.read(0, 100)) != b"q":
    os.write(1, b"<" + key.hex().encode() + b">")
os._exit(6)
"""
# Takes lines, as a shell's `read` does; says when it is interrupted.
LINES = """
import os, signal, sys
signal.signal(signal.SIGINT, lambda *_: os.write(1, b"(interrupted)\\n"))
print("up", flush=True)
for line in sys.stdin:
    if line == "q\\n":
        sys.exit(6)
    print(f"[{line.strip()}]", flush=True)
"""


@pytest.fixture
def gateway() -> Iterator[FakeGateway]:
    with fake_gateway() as opened:
        yield opened


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    root = str(Path(__file__).parents[3])
    with Terminal(environment(TERM="dumb"), cwd=root) as opened:
        yield opened


def modes(terminal: Terminal) -> list[Any]:
    """Of the caller's terminal: the other side tells them too."""
    return termios.tcgetattr(terminal._master)


def press(terminal: Terminal, keys: str) -> None:
    """As a person does who has read the question."""
    time.sleep(QUIET_S)
    terminal.type(keys)


def test_only_a_key_that_comes_alone_and_after_the_question_is_an_answer(
    terminal: Terminal, gateway: FakeGateway
) -> None:
    """What was typed before goes to the command, which draws its own screen; what is typed at the question never."""
    before = modes(terminal)
    job = terminal.start(asked_argv(gateway, python(RAW)))
    terminal.wait_for("up")
    assert modes(terminal) != before
    terminal.type("o")
    terminal.wait_for("<6f>")

    gateway.ask(1)
    terminal.wait_for("exeat: allow api.x.test:443?  (30 s)")
    for times, keys in enumerate(("only words\r", "\x1b[97;5", "\r", "a"), 1):  # pasted, half a report, Enter, no list
        press(terminal, keys)
        terminal.wait_for("press one key: [y]es, this run  [n]o", times)
    terminal.type("\x1b]11;rgb:aaaa/oooo/nnnn\x07")  # the terminal's answer to a question of the command's
    press(terminal, "o")
    assert gateway.hear() == (1, True, False)
    terminal.wait_for("exeat: api.x.test:443 is allowed for this run")
    terminal.wait_for("<1b5d31313b7267623a616161612f6f6f6f6f2f6e6e6e6e07>")

    gateway.ask(2, can_store=True)
    terminal.wait_for("[y]es, this run  [a]lways  [n]o  n[e]ver")
    press(terminal, "e")
    assert gateway.hear() == (2, False, True)
    terminal.wait_for("exeat: api.x.test:443 is never allowed")
    press(terminal, "z")
    terminal.wait_for("<7a>")
    terminal.type("q")
    assert terminal.wait(job) == ("exited", 6)
    assert modes(terminal) == before
    seen = [part.split(">")[0] for part in terminal.text.split("<")[1:]]
    assert seen == ["6f", "1b5d31313b7267623a616161612f6f6f6f6f2f6e6e6e6e07", "7a"]
    assert terminal.text.endswith("the summary\n")


def test_what_the_command_writes_waits_for_the_answer(terminal: Terminal, gateway: FakeGateway) -> None:
    """Nothing of the command's can change what the caller sees of a question, and nothing of it is lost."""
    job = terminal.start(asked_argv(gateway, python(RAW)))
    terminal.wait_for("|")
    command = int(terminal.text.split("up")[1].split("|")[0])
    gateway.ask(1, "first.test", inside=True)
    gateway.ask(2, "bad\x1b[2Jname\u202e.test", rule="*")
    gateway.ask(3, "third.test")
    terminal.wait_for("allow first.test:443?")
    terminal.wait_for("CAREFUL: this is an internal address")
    os.kill(command, signal.SIGUSR1)
    gateway.say_gone(3)  # never shown
    press(terminal, "n")
    assert gateway.hear() == (1, False, False)
    terminal.wait_for("allow bad\\u{1b}[2Jname\\u{202e}.test:443?")
    gateway.say_gone(2)
    terminal.wait_for("answered elsewhere")
    terminal.wait_for("(written)")
    time.sleep(QUIET_S)
    gateway.ask(4, "late.test", wait_s=0.2)
    terminal.wait_for("allow late.test:443?  (0 s)")
    gateway.say_gone(4)
    terminal.wait_for("late.test:443: time is up, so it is denied")
    time.sleep(QUIET_S)
    terminal.type("q")
    assert terminal.wait(job) == ("exited", 6)
    assert terminal.text.index("(written)") > terminal.text.index("first.test:443 is denied for this run")
    assert "third.test" not in terminal.text


def test_ctrl_c_is_a_no_and_interrupts(terminal: Terminal, gateway: FakeGateway) -> None:
    """Who presses it wants an end of all that. Escape is a no as well, and Ctrl-Z leaves the question for later."""
    job = terminal.start(asked_argv(gateway, python(LINES)))
    terminal.wait_for("up")
    gateway.ask(1)
    terminal.wait_for("allow")
    press(terminal, "\x03")
    assert gateway.hear() == (1, False, False)
    terminal.wait_for("(interrupted)")
    gateway.ask(2)
    terminal.wait_for("allow", times=2)
    press(terminal, "\x1b")
    assert gateway.hear() == (2, False, False)
    before = terminal.text.count("allow")
    gateway.ask(3)
    terminal.wait_for("allow", times=before + 1)
    press(terminal, "\x1a")
    assert terminal.wait(job)[0] == "stopped"
    assert modes(terminal)[3] & termios.ICANON
    terminal.go_on(job)
    terminal.wait_for("allow", times=before + 2)
    press(terminal, "o")
    assert gateway.hear() == (3, True, False)
    terminal.wait_for("is allowed for this run")
    time.sleep(QUIET_S)
    terminal.type("words\n")
    terminal.wait_for("[words]")
    os.killpg(job, signal.SIGTERM)  # it is not what ends the process in between
    terminal.type("q\n")
    assert terminal.wait(job) == ("exited", 6)


def test_a_question_is_nobodys_when_the_command_has_ended(terminal: Terminal, gateway: FakeGateway) -> None:
    """What is said at the end comes after it, and is not held back by it."""
    job = terminal.start(asked_argv(gateway, python(LINES)))
    terminal.wait_for("up")
    gateway.ask(1)
    terminal.wait_for("allow")
    os.kill(_command_of(job), signal.SIGKILL)
    assert terminal.wait(job)[0] == "exited"
    assert "no longer needed" in terminal.text
    assert terminal.text.endswith("the summary\n")


def _command_of(job: int) -> int:
    """Below the leader of its session; the other child is the process in between."""
    (command,) = [each for child in children_of(job) for each in children_of(child)]
    return command


def test_if_the_process_in_between_is_killed_the_terminal_is_as_before(
    terminal: Terminal, gateway: FakeGateway
) -> None:
    """And the command's terminal is gone, so it ends."""
    before = modes(terminal)
    job = terminal.start(asked_argv(gateway, python(LINES)))
    terminal.wait_for("up")
    (relay,) = [child for child in children_of(job) if not children_of(child)]
    os.kill(relay, signal.SIGKILL)
    assert terminal.wait(job)[0] == "exited"
    wait_until(lambda: modes(terminal) == before, "the modes of before")
    assert gateway.channel.recv(100) == b""  # and the gateway knows that there is no one to ask


def test_if_the_run_is_killed_the_terminal_is_as_before(terminal: Terminal, gateway: FakeGateway) -> None:
    before = modes(terminal)
    job = terminal.start(asked_argv(gateway, python(RAW)))
    terminal.wait_for("|")
    gateway.ask(1)
    terminal.wait_for("allow")
    os.kill(job, signal.SIGKILL)
    assert terminal.wait(job) == ("killed", signal.SIGKILL)
    assert gateway.channel.recv(100) == b""
    wait_until(lambda: modes(terminal) == before, "the modes of before")


def drawing_modes(terminal: Terminal) -> bool:
    return not modes(terminal)[1] & termios.OPOST


def test_lines_of_others_on_the_terminal_begin_where_lines_begin(terminal: Terminal, gateway: FakeGateway) -> None:
    """What the command writes goes through a pipe to a program that shares the caller's terminal."""
    before = modes(terminal)
    program = "import sys\nfor line in sys.stdin: print('one'); print('two', flush=True)\n"
    job = terminal.start(["sh", "-c", '"$@" 2>&1 | cat', "sh", *asked_argv(gateway, python(program))])
    gateway.ask(1)
    terminal.wait_for("[y]es, this run")
    press(terminal, "y")
    assert gateway.hear() == (1, True, False)
    terminal.wait_for("is allowed for this run")
    assert modes(terminal) != before  # the keys are taken
    press(terminal, "go on\n")
    terminal.wait_for("two")
    terminal.type("\x04")
    assert terminal.wait(job) == ("exited", 0)
    assert b"one\r\ntwo\r\n" in terminal._seen
    assert modes(terminal) == before


@pytest.mark.parametrize("others_write", [False, True])
def test_what_a_program_draws_is_passed_on_as_it_is(
    others_write: bool, terminal: Terminal, gateway: FakeGateway
) -> None:
    """Also if its errors go elsewhere; and a program that does not draw leaves the terminal alone only there."""
    draw = "tty.setraw(0); os.write(1, b'drawn|down\\nright'); os.read(0, 1)"
    program = f"import os, tty; os.write(1, b'plain|'); os.read(0, 10); {draw}"
    script = '"$@" 2>/dev/null' if others_write else '"$@"'
    job = terminal.start(["sh", "-c", script, "sh", *asked_argv(gateway, python(program))])
    terminal.wait_for("plain|")
    wait_until(lambda: not modes(terminal)[3] & termios.ICANON, "the terminal to be taken")
    assert drawing_modes(terminal) is not others_write
    terminal.type("x\n")
    terminal.wait_for("right")
    assert b"drawn|down\nright" in terminal._seen
    assert drawing_modes(terminal)
    terminal.type("q")
    assert terminal.wait(job) == ("exited", 0)
