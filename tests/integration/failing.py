"""What the tests of failing peers begin with."""

from __future__ import annotations

from exeat.gateway.limits import Limits
from tests.support.fixtures.gateways import StartGate
from tests.support.gateways.gate import Gate

HOSTS = {"good.test": "127.0.0.1", "evil.test": "127.0.0.1"}
MB = 1_000_000


def request(port: int, method: str = "GET", extra: str = "", host: str = "good.test") -> bytes:
    authority = f"{host}:{port}"
    return f"{method} http://{authority}/ HTTP/1.1\r\nHost: {authority}\r\n{extra}\r\n".encode()


def post(port: int, length: int) -> bytes:
    return request(port, "POST", f"Content-Length: {length}\r\n")


def gate_to(start_gate: StartGate, port: int, **limits: float) -> Gate:
    return start_gate(allow=[f"good.test:{port}"], hosts=HOSTS, limits=Limits(**limits))  # type: ignore[arg-type]
