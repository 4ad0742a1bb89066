"""cloud-init's seed: what is in it, and the server that a guest may do anything to."""

from __future__ import annotations

import base64
import gzip
import json
import select
import socket
from collections.abc import Iterator

import pytest

from exeat.jail.vm.files import seed
from exeat.jail.vm.files.seed import FIRST_PORT, Seed, SeedServer, answer, choose_port

_WORD = "0123456789abcdef" * 2


def _seed(port: int = 61082) -> Seed:
    return Seed(port, _WORD, b"the agent" * 100, "sandbox")


def test_where_cloud_init_finds_it() -> None:
    """A name that cloud-init has known since the beginning, and an address that ends in a slash."""
    assert _seed().serial == f"ds=nocloud-net;s=http://10.0.2.2:61082/{_WORD}/"


def test_what_cloud_init_finds() -> None:
    files = _seed().files()
    assert files.keys() == {f"/{_WORD}/{name}" for name in ("meta-data", "user-data", "vendor-data")}
    assert json.loads(files[f"/{_WORD}/meta-data"])["local-hostname"] == "sandbox"
    head, _, body = files[f"/{_WORD}/user-data"].partition(b"\n")
    assert head == b"#cloud-config"
    wanted = json.loads(body)  # which is YAML as well
    (file,) = wanted["write_files"]
    assert gzip.decompress(base64.b64decode(file["content"])) == b"the agent" * 100
    assert (file["encoding"], file["permissions"]) == ("gz+b64", "0700")
    ((*_, command),) = wanted["runcmd"]
    assert f"{file['path']} service" in command


@pytest.mark.parametrize(("taken", "port"), [((), FIRST_PORT), ((FIRST_PORT, FIRST_PORT + 2), FIRST_PORT + 1)])
def test_a_port_that_leads_nowhere_else(taken: tuple[int, ...], port: int) -> None:
    assert choose_port(taken) == port


@pytest.mark.threat("T-V43")
@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"GET /x/meta-data HTTP/1.1", b"200"),
        (b"HEAD /x/meta-data HTTP/1.1", b"200"),
        (b"POST /x/meta-data HTTP/1.1", b"404"),
        (b"GET /x/ HTTP/1.1", b"404"),
        (b"GET / HTTP/1.1", b"404"),
        (b"GET /x/../x/meta-data HTTP/1.1", b"404"),
        (b"GET http://10.0.2.2/x/meta-data HTTP/1.1", b"404"),
        (b"GET /etc/passwd HTTP/1.1", b"404"),
        (b"GET /\xff HTTP/1.1", b"404"),
        (b"GET", b"404"),
        (b"", b"404"),
    ],
)
def test_answers(request_line: bytes, status: bytes) -> None:
    told = answer(request_line + b"\r\nHost: x\r\n\r\n", {"/x/meta-data": b"data"})
    assert told.split(b" ")[1] == status
    assert told.endswith(b"data") == (request_line.startswith(b"GET") and status == b"200")


@pytest.fixture
def served() -> Iterator[tuple[SeedServer, int]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = SeedServer(_seed(port))
    yield server, port
    server.close()


def _turn(server: SeedServer) -> None:
    poll = select.poll()
    for descriptor, wanted in server.wishes():
        poll.register(descriptor, wanted)
    server.move(dict(poll.poll(1000)))


def _until_they_have_gone(server: SeedServer) -> None:
    while len(server.wishes()) > 1:
        _turn(server)


def _connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=10)


def test_it_is_served(served: tuple[SeedServer, int]) -> None:
    """Also to one that sends its request in pieces."""
    server, port = served
    with _connect(port) as client:
        for piece in (f"GET /{_WORD}/meta-data HTTP/1.1\r\n".encode(), b"Host: x\r\n", b"\r\n"):
            client.sendall(piece)
            _turn(server)
        _until_they_have_gone(server)
        told = b"".join(iter(lambda: client.recv(4096), b""))
    assert told.startswith(b"HTTP/1.1 200 OK")
    assert b"local-hostname" in told


@pytest.mark.threat("T-V43")
def test_whoever_says_too_much_or_nothing(served: tuple[SeedServer, int]) -> None:
    server, port = served
    silent = [_connect(port) for _ in range(seed._MOST_CLIENTS)]
    for _ in silent:
        _turn(server)
    assert len(server.wishes()) == seed._MOST_CLIENTS, "it takes no more"
    for each in silent:
        each.close()
    _until_they_have_gone(server)
    with _connect(port) as client:
        client.sendall(b"x" * (seed._MOST_HEAD + 1))
        while len(server.wishes()) < 2:
            _turn(server)
        _until_they_have_gone(server)
        try:
            told = client.recv(10)
        except ConnectionResetError:  # there was more that it has not read
            told = b""
        assert told == b""
