"""The guest's agent, without a guest: what it starts, frames, and how it was built."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exeat.jail import container
from exeat.jail import vm as room
from exeat.jail.vm.protocol import Kind, encode
from tests.support.programs import give_up, need
from tests.support.vms.agent_process import (
    AGENT,
    AgentProcess,
    start_agent,
    start_payload,
)

_FOLDER = Path(room.__file__).parent
_SCRIPT = Path(__file__).parents[4] / "scripts" / "build-init"
_PROTOCOL_ERROR = struct.pack("<I", errno.EPROTO)


def _run(*argv: str, typed: bytes = b"", **others: str) -> tuple[AgentProcess, int]:
    """To the end: the agent, and the command's status as a shell counts."""
    with start_agent() as agent:
        agent.send(Kind.START, start_payload(*argv, **others))  # type: ignore[arg-type]
        agent.hear_kind(Kind.RUNNING)
        agent.type(typed)
        agent.end_input(len(typed))
        status = os.waitstatus_to_exitcode(agent.exited().status)
        agent.send(Kind.END)
        assert agent.status() == 0
        return agent, status


def _python(text: str) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", "-c", text)


# What it starts


def test_the_command_has_three_streams_and_its_status_is_told() -> None:
    agent, status = _run("sh", "-c", "cat; echo out; echo err >&2; exit 7", typed=b"in\n")
    assert (bytes(agent.out), bytes(agent.err), status) == (b"in\nout\n", b"err\n", 7)


def test_the_command_that_a_signal_ended() -> None:
    assert _run("sh", "-c", "kill -TERM $$")[1] == -signal.SIGTERM


def test_the_command_has_its_arguments_and_environment_and_nothing_else() -> None:
    show = "import os, sys; print(sys.argv[1:], sorted(os.environ.items()))"
    with start_agent() as agent:
        agent.start(*_python(show), "", "a=b", "ü\n", environ={"LC_ALL": "C.UTF-8", "NAME": "a=b", "EMPTY": ""})
        agent.hear_kind(Kind.RUNNING)
        agent.exited()
        out = agent.out.decode()
    assert out.splitlines()[0] == "['', 'a=b', 'ü\\n'] [('EMPTY', ''), ('LC_ALL', 'C.UTF-8'), ('NAME', 'a=b')]"


def test_the_command_has_no_descriptor_but_its_streams_and_no_signal_blocked() -> None:
    show = "import os; print(sorted(map(int, os.listdir('/proc/self/fd'))))"
    assert _run(*_python(show))[0].out == b"[0, 1, 2, 3]\n"  # the last one lists
    masks = _run("grep", "^Sig[BI]", "/proc/self/status")[0].out.decode().split()
    assert masks[1::2] == ["0" * 16, "0" * 16]


def test_the_command_leads_a_session_has_its_umask_and_its_folder(tmp_path: Path) -> None:
    show = "import os; print(os.getsid(0) == os.getpid(), oct(os.umask(0)), os.getcwd())"
    out = _run(*_python(show), umask="0027", cwd=str(tmp_path))[0].out.decode()
    assert out == f"True 0o27 {tmp_path}\n"


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("{0}/empty:{0}/first:{0}/second", "first"),
        ("{0}/plain:{0}/second", "second"),
        ("{0}/first/tool:{0}/second", "second"),  # a file among the folders
        ("/" + "x" * 5000 + ":{0}/second", "second"),  # longer than any path
        ("{0}/plain:{0}/empty", errno.EACCES),
        ("{0}/empty", errno.ENOENT),
    ],
)
def test_the_command_is_looked_for_in_its_own_path(tmp_path: Path, path: str, found: str | int) -> None:
    for name, mode in (("empty", 0), ("plain", 0o644), ("first", 0o755), ("second", 0o755)):
        (tmp_path / name).mkdir()
        if mode:
            (tmp_path / name / "tool").write_text(f"#!/bin/sh\necho {name}\n")
            (tmp_path / name / "tool").chmod(mode)
    with start_agent() as agent:
        agent.start("tool", environ={"PATH": path.format(tmp_path)})
        if isinstance(found, int):
            assert agent.hear() == (Kind.EXEC_FAILED, struct.pack("<I", found))
            return
        agent.hear_kind(Kind.RUNNING)
        agent.exited()
        assert agent.out.decode().strip() == found


@pytest.mark.parametrize(
    ("payload", "number", "words"),
    [
        (start_payload(), errno.EINVAL, "names no command"),
        (start_payload("true", cwd="/nowhere"), errno.ENOENT, "cannot start in /nowhere"),
        (start_payload("true", terminal="80"), errno.EINVAL, "no size of a terminal: 80"),
        (b"arg=true", errno.EPROTO, "does not end as it should"),
        (b"", errno.EPROTO, "does not end as it should"),
    ],
)
def test_what_cannot_be_done_is_said(payload: bytes, number: int, words: str) -> None:
    with start_agent() as agent:
        agent.send(Kind.START, payload)
        told = agent.hear_kind(Kind.FAILED)
        assert struct.unpack("<I", told[:4])[0] == number
        assert words in told[4:].decode()
        agent.send(Kind.END)
        assert agent.hear() is None


def test_it_refuses_to_be_anything_but_process_1() -> None:
    """It kills all processes that it sees, in the end."""
    assert subprocess.run([str(AGENT)], check=False).returncode == 1


def test_as_a_service_it_leaves_a_machine_alone_that_is_no_guest_of_ours() -> None:
    """Where it finds no ports it powers off. Here it could only do that to a namespace of its own."""
    need("unshare")
    alone = ("unshare", "--user", "--map-root-user", "--pid", "--fork")
    if subprocess.run([*alone, "true"], check=False, capture_output=True).returncode:
        give_up("no namespaces of its own for the agent")
    assert subprocess.run([*alone, str(AGENT), "service"], check=False).returncode == 1


# Frames


@pytest.mark.thorough
@settings(max_examples=15)
@given(st.lists(st.integers(1, 40), max_size=6), st.text(st.characters(exclude_characters="\0", codec="utf-8")))
def test_frames_may_come_in_pieces(cuts: list[int], text: str) -> None:
    stream = encode(Kind.START, start_payload("printf", "%s", text)) + encode(Kind.INPUT_END, bytes(8))
    with start_agent() as agent:
        for cut in cuts:
            agent.control.sendall(stream[:cut])
            stream = stream[cut:]
            time.sleep(0.001)
        agent.control.sendall(stream)
        agent.hear_kind(Kind.RUNNING)
        agent.exited()
        assert agent.out == text.encode()


_WRONG = [
    b"\0" * 8,
    struct.pack("<B3xI", 6, 0),
    struct.pack("<B3xI", 65, 4),  # the guest's own
    struct.pack("<B3xI", Kind.START, (1 << 20) + 1),
    struct.pack("<B3xI", Kind.START, 0xFFFFFFFF),
    struct.pack("<B3xI", Kind.SIGNAL, 2),
    struct.pack("<B3xI", Kind.END, 1),
    struct.pack("<BBBBI", Kind.END, 0, 1, 0, 0),
    b"\xff" * 64,
]


@pytest.mark.parametrize("frame", _WRONG, ids=lambda frame: frame[:8].hex())
@pytest.mark.parametrize("is_running", [False, True])
def test_what_is_no_frame_ends_it(frame: bytes, is_running: bool) -> None:
    with start_agent() as agent:
        if is_running:
            agent.start("sleep", "1000")
            agent.hear_kind(Kind.RUNNING)
        agent.control.sendall(frame)
        assert agent.hear_kind(Kind.FAILED)[:4] == _PROTOCOL_ERROR
        agent.control.shutdown(1)
        assert agent.status() == 0


def test_a_second_word_to_start_ends_it() -> None:
    with start_agent() as agent:
        agent.start("sleep", "1000")
        agent.hear_kind(Kind.RUNNING)
        agent.start("sleep", "1000")
        assert agent.hear_kind(Kind.FAILED)[:4] == _PROTOCOL_ERROR


def test_the_longest_word_to_start() -> None:
    arguments = ["x" * 100_000] * 10  # each no longer than Linux takes
    with start_agent() as agent:
        agent.start("sh", "-c", "echo $#", "sh", *arguments)
        agent.hear_kind(Kind.RUNNING)
        agent.exited()
        assert agent.out == b"10\n"


def test_very_many_words_to_the_command() -> None:
    with start_agent() as agent:
        agent.start("sh", "-c", "echo $#", "sh", *["x"] * 100_000)
        agent.hear_kind(Kind.RUNNING)
        agent.exited()
        assert agent.out == b"100000\n"


def test_a_flood_of_frames_holds_up_nothing() -> None:
    with start_agent() as agent:
        agent.start("sh", "-c", "head -c 200000 /dev/zero; read x; echo got $x")
        agent.hear_kind(Kind.RUNNING)
        flood = encode(Kind.SIGNAL, bytes([signal.SIGWINCH])) + encode(Kind.WINDOW, bytes(4))
        agent.control.sendall(flood * 2_000)
        agent.type(b"it\n")
        agent.exited()
        assert agent.out.endswith(b"got it\n")
        assert len(agent.out) == 200_007


# How it was built


def test_it_was_built_of_these_sources() -> None:
    sources = [_FOLDER / "agent.c", *sorted(_FOLDER.glob("agent_*.h")), Path(container.__file__).parent / "bare.h"]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    assert f"made of {digest}".encode() in AGENT.read_bytes(), "run scripts/build-init"
    assert os.access(AGENT, os.X_OK)


@pytest.mark.thorough
def test_it_is_what_the_compiler_makes_of_them(tmp_path: Path) -> None:
    need("x86_64-linux-gnu-gcc")
    environment = {"PATH": os.environ["PATH"], "INIT_FOLDER": str(tmp_path), "PYTHON": sys.executable}
    subprocess.run([str(_SCRIPT), "x86_64"], env=environment, check=True)
    built = tmp_path / AGENT.name
    if _compiler(built) != _compiler(AGENT):
        pytest.skip(f"made by another compiler: {_compiler(AGENT)}; here is {_compiler(built)}")
    assert built.read_bytes() == AGENT.read_bytes(), "run scripts/build-init"


def _compiler(program: Path) -> str:
    content = program.read_bytes()
    return content[content.find(b"GCC: (") :].partition(b"\0")[0].decode()


@pytest.mark.skipif(shutil.which("readelf") is None, reason="binutils: not installed")
def test_it_needs_nothing() -> None:
    parts = subprocess.run(["readelf", "-lW", str(AGENT)], capture_output=True, text=True, check=True).stdout
    assert "INTERP" not in parts
    assert "DYNAMIC" not in parts
    assert "RWE" not in parts
