"""Attacks on the jail that fail, kept so that they go on failing, and strangers who only want to be in the way."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.runs.running import ANYWHERE, AS_ROOT, BY_USER, as_user, environment, exeat, folder_of, python

# The gateway's ports

_TAKE = """
import socket
REUSE = ((socket.SOL_SOCKET, socket.SO_REUSEADDR, 1), (socket.SOL_SOCKET, socket.SO_REUSEPORT, 1))
DUAL = (socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
for family, host in ((2, "127.0.0.1"), (2, "0.0.0.0"), (10, "::1"), (10, "::"), (10, "::ffff:127.0.0.1")):
    for kind, port in ((1, 61080), (1, 53), (2, 53)):
        for options in ((), REUSE, (*REUSE, DUAL) if family == 10 else REUSE):
            taken = socket.socket(family, kind)
            for option in options:
                taken.setsockopt(*option)
            try:
                taken.bind((host, port))
                if kind == 1:
                    taken.listen(5)
            except OSError:
                continue
            print("TAKEN", host, port)
own = socket.create_server(("127.0.0.2", 61080))  # no one is led here
taken = socket.create_server(("127.0.0.1", 61081))
print("control", taken.getsockname()[1])
"""


@pytest.mark.threat("T-E4")
@BY_USER
def test_the_gateways_ports_cannot_be_shared_or_taken(uid: int | None) -> None:
    done = exeat(command=python(_TAKE), uid=uid)
    assert "control 61081" in done.stdout, done.stderr
    assert "TAKEN" not in done.stdout


_CONNECT_FROM_THERE = """
import socket
for source in ("127.0.0.3", "8.8.8.8", "203.0.113.9"):
    with socket.socket() as conn:
        conn.settimeout(5)
        conn.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        conn.bind((source, 61080))
        conn.connect(("203.0.113.9", 80))
        conn.sendall(b"GET / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
        print(conn.recv(12).decode())
"""


@pytest.mark.threat("T-E4")
def test_a_connection_from_the_gateways_port_is_judged_like_any_other() -> None:
    """The kernel is asked by both ends of it where it was meant to go: one that looks like ours must not confuse it."""
    done = exeat(command=python(_CONNECT_FROM_THERE))
    assert done.stdout.splitlines() == ["HTTP/1.1 403"] * 3, done.stderr


_ASK_FROM_STRANGE_PLACES = """
import socket
query = bytes((0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 4)) + b"good" + bytes((4,)) + b"test" + bytes((0, 0, 1, 0, 1))
for source in ("8.8.8.8", "127.0.0.9", "255.255.255.255", "127.0.0.1"):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.settimeout(1)
        try:
            asking.bind((source, 0))
            asking.sendto(query, ("127.0.0.1", 53))
            print(source, asking.recv(512)[-4:].hex())
        except OSError as error:
            print(source, "failed")
"""


@pytest.mark.threat("T-D4")
def test_dns_goes_on_after_questions_whose_answers_cannot_be_sent() -> None:
    done = exeat("--allow", "good.test", command=python(_ASK_FROM_STRANGE_PLACES))
    assert done.stdout.splitlines()[-1] == "127.0.0.1 c6120001", done.stdout


# Init

_LOOK_AT_INIT = """
import os
for name in ("fd/0", "root/", "cwd", "ns/net", "environ", "mem", "maps", "exe", "map_files"):
    for pid in ("1", "self"):
        path = f"/proc/{pid}/{name}"
        look = os.readlink if os.path.islink(path) else os.listdir if os.path.isdir(path) else open
        try:
            look(path)
        except OSError:
            print(pid, "closed", name)
        else:
            print(pid, "open", name)
"""


@pytest.mark.threat("T-E7")
@BY_USER
def test_init_tells_nothing_of_itself(uid: int | None) -> None:
    found = exeat(command=python(_LOOK_AT_INIT), uid=uid).stdout.splitlines()
    assert [line for line in found if line.startswith("1 open")] == []
    assert len([line for line in found if line.startswith("self open")]) == 9


@pytest.mark.threat("T-E7")
@AS_ROOT
@BY_USER
def test_a_second_proc_shows_no_memory_of_processes_outside(uid: int | None) -> None:
    with folder_of(None) as proc, subprocess.Popen([*as_user(uid), "sleep", "60"]) as victim:
        subprocess.run(["mount", "-t", "proc", "proc", proc], check=True)
        try:
            look = f"os.listdir('{proc}/{victim.pid}/root'); open('{proc}/{victim.pid}/environ').read(); print('SEEN')"
            program = f"import os\ntry:\n    {look}\nexcept OSError as error:\n    print(error)"
            assert "SEEN" in subprocess.check_output([*as_user(uid), *python(program)], text=True)
            assert "SEEN" not in exeat(command=python(program), uid=uid, cwd=ANYWHERE).stdout
        finally:
            subprocess.run(["umount", proc], check=True)
            victim.kill()


# Variables of the caller's that point to odd places

_TRY_TO_GET_OUT = """
import socket, sys
with socket.create_connection(("203.0.113.9", 80), 5) as conn:
    conn.sendall(b"GET / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
    print(conn.recv(12).decode())
"""


@pytest.mark.threat("T-L8")
@BY_USER
@pytest.mark.parametrize("place", ["/", "/proc", "/dev", "/etc", "/run", "/run/exeat", "relative", "/nowhere"])
@pytest.mark.parametrize("name", ["XDG_RUNTIME_DIR", "EXEAT_HOME", "XDG_STATE_HOME"])
def test_odd_folders_open_nothing(name: str, place: str, uid: int | None) -> None:
    """The jail holds, or there is none and nothing is started."""
    env = environment(**{name: place})
    made = [path for path in (Path(place), Path(place, "exeat")) if path.is_absolute() and not path.exists()]
    done = exeat(command=python(_TRY_TO_GET_OUT), uid=uid, env=env, cwd=ANYWHERE)
    for path in reversed(made):
        if path.exists():
            path.rmdir()  # empty, or something else is wrong
    assert (done.status, done.stdout) in ((0, "HTTP/1.1 403\n"), (2, "")), done


# Strangers

# Takes a socket of the working directory away between the look at it and the moment at which it is to be covered.
_TAKE_AWAY = """
import os, sys
from exeat.cli.main import main
from exeat.jail.process import builder
path, look = sys.argv[1], builder.find_sockets
def look_and_take(*arguments):
    found = look(*arguments)
    if path in found:
        os.unlink(path)
    return found
builder.find_sockets = look_and_take
sys.exit(main(["run", "--jail", "netns", "--", "echo", "started"]))
"""


def test_a_socket_that_goes_away_meanwhile_does_not_prevent_a_start(tmp_path: Path) -> None:
    """A stranger can have them come and go all day. What is gone needs no hiding."""
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))
        done = exeat(argv=[sys.executable, "-c", _TAKE_AWAY, str(path)], cwd=tmp_path)
        assert not path.exists()
    assert done.stdout == "started\n", done.stderr


_FAIL = """
import errno, sys
from exeat.cli.main import main
from exeat.jail.files import mounts
def fail(path):
    raise OSError(errno.EIO, "a mishap")
mounts._hide_socket = fail
sys.exit(main(["run", "--", "echo", "started"]))
"""


@pytest.mark.threat("T-E11")
@AS_ROOT
def test_a_jail_that_fails_to_be_built_is_not_replaced_without_a_word(tmp_path: Path) -> None:
    """Root gets the nft jail where the kernel has no other. A mishap, or a stranger's doing, is no such reason."""
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "socket"))
        done = exeat(argv=[sys.executable, "-c", _FAIL], cwd=tmp_path)
    assert (done.status, done.stdout) == (2, "")
    assert "a mishap" in done.stderr
