"""`python3 -m exeat.serve.health`: asks this container's gateway for its health. For a health check, without curl."""

from __future__ import annotations

import os
import socket
import sys

_ANSWER_S = 4.0


def ask_admin(address: str, path: str) -> str:
    """The body of an answer. `address` is as in EXEAT_ADMIN. Raises OSError, also for an answer that is not 200."""
    host, _, port = address.rpartition(":")
    target: str | tuple[str, int] = address if "/" in address else (host.strip("[]"), int(port))
    family = socket.AF_UNIX if "/" in address else socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as connection:
        connection.settimeout(_ANSWER_S)
        connection.connect(target)
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: admin\r\nConnection: close\r\n\r\n".encode())
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
    head, _, body = answer.decode("utf-8", "replace").partition("\r\n\r\n")
    if not head.startswith("HTTP/1.1 200"):
        raise OSError(body.strip() or "no answer")
    return body


def main() -> int:
    address = os.environ.get("EXEAT_ADMIN", "")
    if not address:
        print("EXEAT_ADMIN names no address to ask", file=sys.stderr)  # noqa: T201 - this is a program
        return 1
    try:
        said = ask_admin(address, "/healthz").strip()
    except (OSError, ValueError) as error:
        said = str(error)
    print(said)  # noqa: T201
    return 0 if said == "ok" else 1


if __name__ == "__main__":
    sys.exit(main())
