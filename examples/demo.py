"""What `make demo` shows: a gateway, two hosts on loopback, one allowed and one not, and what was decided."""

from __future__ import annotations

import asyncio
import socket
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import exeat

GOOD, EVIL = "api.good.test", "evil.test"


async def serve_hello(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Stands for any server on the internet. Both names lead to it; only the policy tells them apart."""
    try:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\nhello\n")
        await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


def fetch(proxy: str, url: str) -> str:
    """An ordinary HTTP client that follows its proxy setting, as an agent's would."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({"http": proxy, "https": proxy}))
    try:
        with opener.open(url, timeout=10) as answer:
            return f"{answer.status} {answer.read().decode().strip()}"
    except urllib.error.HTTPError as error:
        return f"{error.code} {error.read().decode().strip()}"
    except OSError as error:
        return str(error)


def send_raw(port: int, data: bytes) -> str:
    """What a hostile program does: bytes of its own making."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as conn:
        conn.sendall(data)
        conn.shutdown(socket.SHUT_WR)
        answer = conn.makefile("rb").read()
    if data[:1] == b"\x05":
        return f"SOCKS5 reply {answer[3]}" if len(answer) > 3 else "closed"
    return answer.split(b"\r\n", 1)[0].decode("latin-1").removeprefix("HTTP/1.1 ") or "closed"


def attempts(gateway: exeat.Gateway, port: int) -> list[tuple[str, Callable[[], str]]]:
    url, own = gateway.url, gateway.port
    spoofed = f"GET http://{GOOD}:{port}/ HTTP/1.1\r\nHost: {EVIL}:{port}\r\n\r\n".encode()
    confused = f"CONNECT {EVIL}\0.{GOOD}:{port} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    name = EVIL.encode()
    socks = b"\x05\x01\x00\x05\x01\x00\x03" + bytes([len(name)]) + name + port.to_bytes(2)
    return [
        ("an allowed host", lambda: fetch(url, f"http://{GOOD}:{port}/")),
        ("another host", lambda: fetch(url, f"http://{EVIL}:{port}/")),
        ("another host, over TLS", lambda: fetch(url, f"https://{EVIL}/")),
        ("another host, over SOCKS5", lambda: send_raw(own, socks)),
        ("the server's bare address", lambda: fetch(url, f"http://127.0.0.1:{port}/")),
        (
            "the address in octal",
            lambda: send_raw(own, f"CONNECT 0177.0.0.1:{port} HTTP/1.1\r\nHost: x\r\n\r\n".encode()),
        ),
        ("the cloud's metadata", lambda: fetch(url, "http://169.254.169.254/latest/meta-data/")),
        ("two hosts in one request", lambda: send_raw(own, spoofed)),
        ("a NUL byte in the name", lambda: send_raw(own, confused)),
    ]


def show(title: str, rows: list[tuple[str, ...]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    print(f"\n{title}")
    for row in rows:
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def as_row(event: dict[str, Any]) -> tuple[str, ...]:
    where = f"{event['host']}:{event['port']}" if event["host"] else "(unreadable)"
    return event["verdict"], event["protocol"], event["method"], where, event["rule"] or "-", event["reason"]


async def main() -> None:
    server = await asyncio.start_server(serve_hello, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    policy = exeat.make_policy([f"{GOOD}:{port}"], hosts={GOOD: "127.0.0.1", EVIL: "127.0.0.1"})
    print(f"The policy has one rule: {policy.rules[0].text}. Everything else is denied.")
    tried: list[tuple[str, ...]] = [("what the program tried", "what it got")]
    async with exeat.Gateway(policy, sandbox="demo") as gateway:
        events = gateway.events()
        for what, attempt in attempts(gateway, port):
            tried.append((what, (await asyncio.to_thread(attempt))[:100]))
    decided: list[tuple[str, ...]] = [("verdict", "protocol", "method", "host", "rule", "reason")]
    decided += [as_row(event) async for event in events if event["event"] == "decision"]
    server.close()
    show("The program's view", tried)
    show("The audit log's view", decided)
    allowed = sum(row[0] == "allow" for row in decided)
    print(f"\n{len(decided) - 1} decisions, {allowed} allowed, every one on record.")
    if allowed != 1 or len(decided) != len(tried):
        raise SystemExit("the demo did not go as it should: please report this")


if __name__ == "__main__":
    asyncio.run(main())
