"""A web page that tries to drive another server from a browser, and a server that anybody can drive, to compare."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

from websockets.sync.server import Server, ServerConnection, serve

# Everything that a page can do to a server of another origin. `target` is that origin, `token` a token for its API,
# `asked` what to send. Each try ends in a word on what came of it; what a page cannot know of a frame, its tester asks.
ATTACKS = """
async (target, socket, token, asked) => {
  document.body.replaceChildren();
  const tried = {};
  const under = [];
  const attempt = (name, act) => under.push(attemptOne(name, act));
  const attemptOne = async (name, act) => {
    try { tried[name] = await Promise.race([act(), new Promise((done) => setTimeout(() => done("nothing"), 12000))]); }
    catch (error) { tried[name] = "blocked"; }
  };
  const body = JSON.stringify(asked);
  const plain = { "Content-Type": "text/plain" };
  const json = { "Content-Type": "application/json" };
  const read = async (answer) => { await answer.text(); return answer.ok ? "read" : "refused"; };
  attempt("fetch", async () => read(await fetch(`${target}/page.js`)));
  attempt("fetch_token", async () => read(await fetch(`${target}/api/allow`, {
    method: "POST", headers: { ...json, Authorization: `Bearer ${token}` }, body })));
  attempt("fetch_json", async () => read(await fetch(`${target}/api/allow`, { method: "POST", headers: json, body })));
  attempt("fetch_simple", async () => {
    await fetch(`${target}/api/allow`, { method: "POST", mode: "no-cors", headers: plain, body });
    return "sent";
  });
  attempt("beacon", async () => {
    navigator.sendBeacon(`${target}/api/allow`, new Blob([body], { type: "text/plain" }));
    return "sent";
  });
  attempt("script", () => new Promise((done) => {
    const script = Object.assign(document.createElement("script"), { src: `${target}/page.js` });
    script.onload = () => done("loaded"); script.onerror = () => done("blocked");
    document.body.append(script);
  }));
  attempt("image", () => new Promise((done) => {
    const image = new Image();
    image.onload = () => done("loaded"); image.onerror = () => done("blocked");
    image.src = `${target}/api/live`;
  }));
  attempt("form", () => new Promise((done) => {
    const frame = Object.assign(document.createElement("iframe"), { name: "form-frame" });
    document.body.append(frame);
    const form = Object.assign(document.createElement("form"), {
      method: "POST", action: `${target}/api/allow`, enctype: "text/plain", target: "form-frame" });
    form.append(Object.assign(document.createElement("input"), { name: body.slice(0, -1) + ', "x": "', value: '"}' }));
    document.body.append(form);
    form.submit();
    done("sent");
  }));
  attempt("frame", () => new Promise((done) => {
    const frame = Object.assign(document.createElement("iframe"), { src: `${target}/#${token}` });
    document.body.append(frame);
    done("tried");
  }));
  attempt("websocket", () => new Promise((done) => {
    const opened = new WebSocket(`${socket}/api/live`);
    opened.onopen = () => done("open"); opened.onerror = () => done("blocked");
  }));
  attempt("window", () => new Promise((done) => {
    const opened = window.open(`${target}/#${token}`);
    let seen = 0;  // a window that is to be cut off may be another origin's for a moment
    const look = setInterval(() => {
      try { opened.location.href; } catch { seen += 1; }
      if (!opened.closed && seen < 3) return;
      clearInterval(look);
      done(opened.closed ? "cut off" : "held");
    }, 10);
  }));
  await Promise.all(under);
  return tried;
}
"""


class _Servant(BaseHTTPRequestHandler):
    server: _Naive

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.posted.append(body)
        self._answer()

    def do_OPTIONS(self) -> None:
        self._answer()

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self) -> None:
        kind, body = {
            "/page.js": ("text/javascript", b"1"),
            "/api/live": ("image/svg+xml", b'<svg xmlns="http://www.w3.org/2000/svg" width="1" height="1"/>'),
        }.get(self.path, ("text/html", b"<!doctype html><title>somebody</title><p>here</p>"))
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name in ("Origin", "Headers", "Methods"):
            self.send_header(f"Access-Control-Allow-{name}", "*, Authorization" if name == "Headers" else "*")
        self.end_headers()
        self.wfile.write(body)


class _Naive(ThreadingHTTPServer):
    posted: list[bytes]


class NaiveServer:
    """Does whatever anybody asks. As the origin of a hostile page, and as a victim that shows that the attacks work."""

    def __init__(self) -> None:
        self._server = _Naive(("127.0.0.1", 0), _Servant)
        self._server.posted = []
        self._sockets: Server = serve(_greet, "127.0.0.1", 0)
        self._threads = [
            threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}),
            threading.Thread(target=self._sockets.serve_forever),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def socket_port(self) -> int:
        return int(self._sockets.socket.getsockname()[1])

    @property
    def posted(self) -> list[object]:
        """The requests that it would have obeyed."""
        return [json.loads(body) for body in self._server.posted]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._sockets.shutdown()
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _greet(connection: ServerConnection) -> None:
    connection.send("hello")
