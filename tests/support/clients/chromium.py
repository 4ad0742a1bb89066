"""Headless Chromium, driven over its debugging protocol. Reaches loopback only: no proxy, and no name resolves."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from websockets.sync.client import ClientConnection, connect

from tests.support.gateways.scene import wait_until
from tests.support.programs import find

_WAIT_S = 60.0


class Chromium:
    """A browser with a profile of its own. `hosts` maps names to addresses, as a hostile name server would."""

    def __init__(self, hosts: Mapping[str, str] | None = None) -> None:
        program = find("chromium")
        self._profile = tempfile.TemporaryDirectory(prefix="exeat-chromium-", ignore_cleanup_errors=True)
        rules = ", ".join([*(f"MAP {name} {to}" for name, to in (hosts or {}).items()), "MAP * ~NOTFOUND",
                           "EXCLUDE 127.0.0.1", "EXCLUDE localhost"])  # fmt: skip
        self._process = subprocess.Popen(
            [
                program, "--headless=new", "--no-first-run", "--disable-gpu", "--disable-dev-shm-usage",
                "--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-proxy-server",
                "--disable-popup-blocking", "--disable-site-isolation-trials",
                "--disable-features=IsolateOrigins,site-per-process",
                "--remote-debugging-port=0", f"--user-data-dir={self._profile.name}",
                f"--host-resolver-rules={rules}", *(["--no-sandbox"] if os.geteuid() == 0 else []), "about:blank",
            ],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            env=os.environ | {"HOME": self._profile.name},
        )  # fmt: skip
        self._open_things = ExitStack()
        self._socket = self._connect()
        self._number = 0
        self._events: list[dict[str, Any]] = []

    def open(self, url: str = "about:blank", *, width: int = 1400, height: int = 900, dark: bool = False) -> Tab:
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        tab = Tab(self, target, session)
        for domain in ("Page", "Runtime", "Network", "Log"):
            tab.call(f"{domain}.enable")
        tab.resize(width, height)
        tab.call("Emulation.setEmulatedMedia", {
            "features": [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]})  # fmt: skip
        if url != "about:blank":
            tab.go(url)
        return tab

    def call(self, method: str, given: Mapping[str, Any] | None = None, session: str | None = None) -> dict[str, Any]:
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": given or {}} | ({"sessionId": session} if session else {})
        self._socket.send(json.dumps(message))
        while True:
            said = json.loads(self._socket.recv(_WAIT_S))
            if said.get("id") == number:
                assert "error" not in said, f"{method}: {said['error']}"
                result: dict[str, Any] = said["result"]
                return result
            self._events.append(said)

    def events(self, method: str) -> list[dict[str, Any]]:
        """What has been heard of so far, in any tab."""
        self.call("Browser.getVersion")  # what was said before this is read with it
        return [event["params"] for event in self._events if event.get("method") == method]

    def close(self) -> None:
        self._open_things.close()
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._profile.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _connect(self) -> ClientConnection:
        written = Path(self._profile.name) / "DevToolsActivePort"
        wait_until(lambda: written.exists() and written.read_text().count("\n") >= 1, "Chromium to listen")
        port, path = written.read_text().split("\n", 1)
        # A socket of our own: whatever proxy the environment names, it is not asked.
        plain = self._open_things.enter_context(socket.create_connection(("127.0.0.1", int(port)), _WAIT_S))
        opened = connect(f"ws://127.0.0.1:{port}{path}", sock=plain, max_size=None)
        return self._open_things.enter_context(opened)


class Tab:
    """One page."""

    def __init__(self, browser: Chromium, target: str, session: str) -> None:
        self._browser = browser
        self._target = target
        self._session = session

    def call(self, method: str, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return self._browser.call(method, given, self._session)

    def go(self, url: str) -> None:
        """Load a page, or be refused it. Waits until it is there."""
        self.call("Page.navigate", {"url": url})
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def resize(self, width: int, height: int) -> None:
        self.call("Emulation.setDeviceMetricsOverride", {
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": False})  # fmt: skip

    def value(self, expression: str) -> Any:
        """What an expression returns, promises awaited. A script that throws fails the test."""
        said = self.call("Runtime.evaluate", {
            "expression": expression, "awaitPromise": True, "returnByValue": True, "userGesture": True})  # fmt: skip
        assert "exceptionDetails" not in said, said["exceptionDetails"]
        return said["result"].get("value")

    def wait(self, expression: str) -> None:
        """Until an expression is true. While a page is being loaded it may also throw."""
        safe = f"(() => {{ try {{ return !!({expression}) }} catch {{ return false }} }})()"
        wait_until(lambda: self.value(safe) is True, expression)

    def press(self, *keys: str) -> None:
        """Keys of a real keyboard, as the browser gets them from the system."""
        for key in keys:
            text = {"Enter": "\r", " ": " "}.get(key)
            known = {"key": key, "code": key, "windowsVirtualKeyCode": _KEYS[key]}
            self.call("Input.dispatchKeyEvent", known | {"type": "keyDown"} | ({"text": text} if text else {}))
            self.call("Input.dispatchKeyEvent", known | {"type": "keyUp"})

    def type(self, text: str) -> None:
        self.call("Input.insertText", {"text": text})

    def click(self, x: float, y: float) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", {"type": kind, "x": x, "y": y, "button": "left", "clickCount": 1})

    def close(self) -> None:
        self._browser.call("Target.closeTarget", {"targetId": self._target})


_KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32}


def text(tab: Tab, selector: str) -> list[str]:
    found = tab.value(f"[...document.querySelectorAll({json.dumps(selector)})].map((each) => each.innerText)")
    assert isinstance(found, list)
    return found


def complaints(browser: Chromium) -> list[str]:
    """Scripts that failed, and what the page's own policy had to stop."""
    logged = [event["entry"]["text"] for event in browser.events("Log.entryAdded")]
    thrown = [event["exceptionDetails"]["text"] for event in browser.events("Runtime.exceptionThrown")]
    return [said for said in logged if "Content Security Policy" in said or "TrustedHTML" in said] + thrown
