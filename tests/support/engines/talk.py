"""The least that it takes to ask an engine something: HTTP over its Unix socket, as both engines speak it.

Not exeat's own client: what exeat has done is to be seen by other eyes.
"""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any

TIMEOUT_S = 120


class EngineError(Exception):
    """Its answer was an error."""


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(TIMEOUT_S)
        self.sock.connect(str(self._path))


def ask(where: Path, method: str, target: str, body: object = None, *, data: Iterable[bytes] | None = None) -> Any:
    """The answer: parsed if it is JSON, else text. `data`: a body that is no JSON, such as a tar."""
    connection = _Connection(where)
    try:
        headers = {"Content-Type": "application/json" if data is None else "application/x-tar"}
        whole = json.dumps(body) if data is None and body is not None else data
        connection.request(method, target, whole, headers, encode_chunked=data is not None)
        answer = connection.getresponse()
        text = answer.read()
        if answer.status >= 400:
            raise EngineError(f"{method} {target}: {answer.status} {text.decode(errors='replace')}")
        if answer.headers.get_content_type() == "application/json" and text.count(b"\n") <= 1:
            return json.loads(text) if text else None
        return text.decode(errors="replace")
    finally:
        connection.close()
