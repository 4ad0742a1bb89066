"""An engine of the builder's tests: it has images, and builds them as a script says."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from exeat.engine.client import Engine
from tests.support.engines.fake_engine import answer, serving


class ScriptedEngine:
    """`log` is what a build prints; an `error` in it means that no image comes of it. `steps` are between builds."""

    def __init__(self) -> None:
        self.images: dict[str, dict[str, Any]] = {"base:1": {"Id": "sha256:" + "a" * 64, "Config": {}}}
        self.log: Sequence[dict[str, Any]] = ({"stream": "Step 1\n"},)
        self.pull: Sequence[dict[str, Any]] = ({"status": "Pulling"}, {"error": "manifest unknown"})
        self.steps: list[dict[str, Any]] = []
        self.removed: list[str] = []
        self.builds: list[dict[str, list[str]]] = []
        self.refusal: bytes = b""
        self.waits_for = threading.Event()
        self.waits_for.set()
        self.is_building = threading.Event()

    def reply(self, request: bytes) -> bytes:
        method, target, _ = request.split(b"\r\n", 1)[0].decode().split(" ")
        parts = urlsplit(target)
        query = parse_qs(parts.query)
        match method, parts.path:
            case "GET", "/_ping":
                return answer(200, "OK")
            case "GET", "/images/json":
                return answer(200, self.steps)
            case "GET", path if path.startswith("/images/"):
                name = path.removeprefix("/images/").removesuffix("/json")
                return answer(200, self.images[name]) if name in self.images else answer(404, {"message": "no such"})
            case "DELETE", path:
                return self._remove(path.removeprefix("/images/"))
            case "POST", "/images/create":
                return _lines(self.pull)
            case "POST", "/build":
                return self._build(query)
        return answer(500, {"message": f"not in the script: {method} {target}"})

    def _build(self, query: dict[str, list[str]]) -> bytes:
        self.builds.append(query)
        self.is_building.set()
        self.waits_for.wait(30)
        if self.refusal:
            return self.refusal
        if not any("error" in line for line in self.log):
            self.images[query["t"][0]] = {"Id": f"sha256:{len(self.images):064x}", "Config": {}}
        return _lines(self.log)

    def _remove(self, image: str) -> bytes:
        if any(step.get("ParentId") == image and step["Id"] not in self.removed for step in self.steps):
            return answer(409, {"message": "it has children"})
        self.removed.append(image)
        return answer(200, [])


def _lines(events: Sequence[dict[str, Any]]) -> bytes:
    body = b"".join(json.dumps(each).encode() + b"\n" for each in events)
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body


@contextmanager
def scripted(folder: Path) -> Iterator[tuple[ScriptedEngine, Engine]]:
    script = ScriptedEngine()
    with serving(folder / "engine.sock", script.reply):
        yield script, Engine(str(folder / "engine.sock"), "docker")
