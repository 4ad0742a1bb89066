"""Tools for pools under test: well behaved ones, and what one tenant tries on another."""

from __future__ import annotations

import os
import socket
import ssl
import urllib.error
import urllib.request
from pathlib import Path


def echo(text: str) -> str:
    return text


def fetch(url: str, token: str = "") -> dict[str, object]:
    """What a server says. `token`: a variable that holds one, or the token itself."""
    headers = {"X-Token": os.environ.get(token, token)} if token else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=20) as answer:
            return {"status": answer.status, "body": answer.read().decode()}
    except urllib.error.HTTPError as error:
        return {"status": error.code, "body": error.read().decode()}
    except OSError as error:
        return {"status": 0, "body": repr(error)}


def files_put_there() -> list[str]:
    """What is mounted from elsewhere, file by file: who has the same one is told of what others do with it."""
    places = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    found = [os.stat(place) for place in places if place.startswith(("/etc/", "/run/")) and Path(place).is_file()]
    return [f"{each.st_dev}.{each.st_ino}" for each in found]


def variable(name: str) -> str:
    return os.environ.get(name, "")


def address_of(name: str) -> str:
    try:
        return socket.gethostbyname(name)
    except OSError:
        return ""


def reach(address: str, port: int, name: str = "") -> str:
    """What comes of a connection: "refused", "closed", or what was read. With a name, TLS for it is spoken first."""
    try:
        with socket.create_connection((address, port), timeout=10) as plain:
            if not name:
                plain.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                return plain.recv(200).decode("latin-1") or "closed"
            context = ssl.create_default_context()
            with context.wrap_socket(plain, server_hostname=name) as inside:
                inside.sendall(b"GET / HTTP/1.1\r\nHost: " + name.encode() + b"\r\n\r\n")
                return inside.recv(200).decode("latin-1") or "closed"
    except ConnectionRefusedError:
        return "refused"
    except OSError as error:
        return f"failed: {type(error).__name__}"


def serve(port: int, guests: int) -> int:
    """A server on every address of the sandbox, until so many have come. Returns how many have, in half a minute."""
    came = 0
    with socket.create_server(("0.0.0.0", port)) as listener:
        listener.settimeout(30)
        while came < guests:
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                break
            came += 1
            with connection:
                connection.sendall(b"mine")
    return came


def abstract_sockets() -> list[str]:
    """Names of Unix sockets in the abstract namespace, which belongs to the network."""
    lines = Path("/proc/net/unix").read_text().splitlines()
    return [line.rpartition(" ")[2] for line in lines if " @" in line]


def leave_mark(text: str) -> list[str]:
    """Write it wherever that is possible, and say where that was."""
    places = []
    for folder in ("/tmp", "/home/sandbox", "/var/tmp", "/dev/shm", "/run", "/exeat", "/"):
        path = Path(folder, f"mark-{text}")
        try:
            path.write_text(text)
            places.append(str(path))
        except OSError:
            continue
    return places


def find_marks() -> list[str]:
    folders = ("/tmp", "/home/sandbox", "/var/tmp", "/dev/shm", "/run", "/exeat", "/")
    return [str(path) for folder in folders for path in Path(folder).glob("mark-*")]


def search(needle: str) -> dict[str, list[str]]:
    """Where a text can be seen: variables, files that can be written, and every process that can be looked into."""
    found = [f"${name}" for name, text in os.environ.items() if needle in text]
    looked = []
    data = needle.encode()
    paths = [path for folder in ("/tmp", "/home/sandbox", "/dev/shm", "/run") for path in Path(folder).rglob("*")]
    paths += [path for name in ("environ", "cmdline", "maps") for path in Path("/proc").glob(f"[0-9]*/{name}")]
    paths += list(Path("/proc").glob("[0-9]*/fd/*"))
    for path in paths:
        try:
            if path.is_file() and data in path.read_bytes():
                found.append(str(path))
            looked.append(str(path))
        except OSError:
            continue
    return {"found": found, "looked": looked[:20]}


def ask_dns(name: str, server: str) -> str:
    """A question over UDP to a server of the tool's own choice. The answer's code, or why there is none."""
    question = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00"
    question += b"".join(bytes([len(part)]) + part.encode() for part in name.split(".")) + b"\0\0\1\0\1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        asked.settimeout(10)
        try:
            asked.sendto(question, (server, 53))
            return str(asked.recv(512)[3] & 15)
        except OSError as error:
            return type(error).__name__
