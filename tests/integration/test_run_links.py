"""A jail looks connected: a link that is up, an address of global scope in each family. None of it leads anywhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.programs import find
from tests.support.runs.running import ANYWHERE, BY_USER, exeat, python

LINKS = """
import fcntl, socket, struct
for index, name in socket.if_nameindex():
    with socket.socket() as probe:
        flags = struct.unpack_from("H", fcntl.ioctl(probe, 0x8913, struct.pack("16sH14x", name.encode(), 0)), 16)[0]
    print(name, "up" if flags & 0x41 == 0x41 else "down")
"""
OWN_SERVER = """
import socket, sys, threading
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
listener = socket.create_server(("", 8080), family=family)
def serve():
    connection, _ = listener.accept()
    connection.sendall(b"own")
    connection.close()
threading.Thread(target=serve, daemon=True).start()
with socket.create_connection((sys.argv[1], 8080), timeout=10) as connection:
    print(connection.recv(10))
"""
BY_DEVICE = """
import socket, sys
host, device, kind = sys.argv[1:]
family = socket.AF_INET6 if ":" in host else socket.AF_INET
with socket.socket(family, socket.SOCK_STREAM if kind == "tcp" else socket.SOCK_DGRAM) as sock:
    sock.settimeout(0.5)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode())
    try:
        sock.connect((host, 9999))
        sock.send(b"data")
        print("answer", sock.recv(10))
    except OSError as error:
        print("nothing")
"""
OWN = ("198.51.100.1", "fd65:7865:6174:1::1")


@BY_USER
def test_links_are_up(uid: int | None) -> None:
    done = exeat("--allow", "good.test", command=python(LINKS), uid=uid, cwd=ANYWHERE)
    assert sorted(done.stdout.splitlines()) == ["exeat0 up", "exeat1 up", "lo up"]


def test_the_kernel_itself_says_nothing_there(tmp_path: Path) -> None:
    """No router is asked for, no neighbour, no group is joined: a run that does nothing has nothing on record."""
    audit = tmp_path / "audit.jsonl"
    exeat("--allow", "good.test", "--audit", str(audit), command=["sleep", "1.5"])
    assert [json.loads(line)["event"] for line in audit.read_text().splitlines()] == ["start", "stop"]


@pytest.mark.parametrize("address", OWN)
def test_own_addresses_are_the_jails(address: str) -> None:
    """As on any machine, a server that listens everywhere is reached by them."""
    done = exeat("--allow", "good.test", command=python(OWN_SERVER, address))
    assert done.stdout == "b'own'\n", done


@pytest.mark.parametrize("kind", ["tcp", "udp"])
@pytest.mark.parametrize("device", ["exeat0", "exeat1"])
@pytest.mark.parametrize("host", ["203.0.113.9", "198.51.100.1", "127.0.0.1", "2001:db8::1", OWN[1]])
def test_nothing_is_reached_by_a_link(host: str, device: str, kind: str) -> None:
    """A socket that is tied to an end of the cable gets no answer from anywhere."""
    done = exeat("--allow", "good.test", command=python(BY_DEVICE, host, device, kind))
    assert done.stdout == "nothing\n", done


def test_chromium_is_online(tmp_path: Path) -> None:
    """`navigator.onLine` goes by links and their addresses; loopback does not count."""
    page = "data:text/html,<script>document.write('onLine is ' + navigator.onLine)</script>"
    browser = [find("chromium"), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    browser += ["--disable-background-networking", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", page]
    done = exeat("--allow", "good.test", "--env", f"HOME={tmp_path}", command=browser)
    assert "onLine is true" in done.stdout, done
