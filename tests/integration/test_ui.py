"""The server of `exeat ui`, over raw sockets: who is answered, and how it starts and ends."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from exeat.sandbox.folder import open_sandbox
from exeat.ui import server as server_module
from tests.support.gateways.scene import wait_until
from tests.support.runs.running import environment
from tests.support.runs.ui_scene import TOKEN, Live, Scene, act, ask, blocked, exchange


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.setenv("EXEAT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(server_module, "TICK_S", 0.04)  # so that tests wait less
    with Scene(tmp_path / "home") as made:
        yield made


@pytest.mark.threat("T-P6")
def test_the_page_comes_with_all_guards_and_asks_for_nothing_elsewhere(scene: Scene) -> None:
    """Strict headers on the page, on its parts and on refusals; nothing inline, nothing from another place."""
    page = ask(scene, "/").body.decode()
    parts = re.findall(r'(?:src|href)="(/[^"#]*)"', page)
    assert {"/page.js", "/page.css"} <= set(parts)
    for target in ("/", *parts, "/text.js", "/nothing", "/api/live"):
        answer = ask(scene, target, authorization=None)
        assert answer.status == {"/nothing": 401, "/api/live": 401}.get(target, 200)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        for part in ("frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'", "script-src 'self'"):
            assert part in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["cross-origin-opener-policy"] == "same-origin"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    sources = [path.read_text() for path in map(Path, map(str, files("exeat.ui").iterdir())) if path.suffix != ".py"
               and path.is_file()]  # fmt: skip
    assert len(sources) >= 8
    for source in sources:
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|https?://(?!pypi\.org/<)", source
        )
    assert not re.search(r"<script(?! type=\"module\" src=)| on[a-z]+=|style=", page)


@pytest.mark.threat("T-P6")
@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:{port}", 200), ("localhost:{port}", 200),
        ("evil.test:{port}", 421), ("127.0.0.1", 421), ("127.0.0.1:1", 421), ("localhost", 421),
        ("127.0.0.1.evil.test:{port}", 421), ("evil.test", 421), ("[::1]:{port}", 421), ("127.1:{port}", 421),
        ("user@127.0.0.1:{port}", 421), ("127.0.0.1:{port},evil.test", 421), ("localhost.:{port}", 421),
        ("2130706433:{port}", 421), ("", 421),
    ],
)  # fmt: skip
def test_only_its_own_name_is_answered(scene: Scene, host: str, status: int) -> None:
    """DNS rebinding: a name of someone else's that leads here is not ours, even with the right token."""
    host = host.format(port=scene.port)
    assert ask(scene, "/", host=host).status == status
    assert ask(scene, "/api/nothing", host=host).status == (404 if status == 200 else status)


@pytest.mark.threat("T-P6")
@pytest.mark.parametrize(
    ("field", "value", "page", "api"),
    [
        ("origin", None, 200, 404), ("origin", "http://127.0.0.1:{port}", 200, 404),
        ("origin", "null", 403, 403), ("origin", "http://127.0.0.1:1", 403, 403), ("origin", "", 403, 403),
        ("origin", "https://127.0.0.1:{port}", 403, 403), ("origin", "http://localhost:{port}", 403, 403),
        ("origin", "http://evil.test", 403, 403), ("origin", "http://127.0.0.1:{port}.evil.test", 403, 403),
        ("sec_fetch_site", None, 200, 404), ("sec_fetch_site", "same-origin", 200, 404),
        ("sec_fetch_site", "none", 200, 403), ("sec_fetch_site", "same-site", 403, 403),
        ("sec_fetch_site", "cross-site", 403, 403), ("sec_fetch_site", "anything", 403, 403),
        ("authorization", "Bearer " + TOKEN, 200, 404), ("authorization", None, 200, 401),
        ("authorization", "Bearer " + TOKEN[:-1], 200, 401), ("authorization", "Bearer " + TOKEN + "T", 200, 401),
        ("authorization", "bearer " + TOKEN, 200, 401), ("authorization", "Basic " + TOKEN, 200, 401),
        ("authorization", "Bearer", 200, 401), ("authorization", "Bearer \xff", 200, 401),
    ],
)  # fmt: skip
def test_who_is_answered(scene: Scene, field: str, value: str | None, page: int, api: int) -> None:
    """The page itself is no secret to this user's browser; everything behind it needs origin and token."""
    changed: dict[str, Any] = {field: value and value.format(port=scene.port)}
    assert ask(scene, "/", **changed).status == page
    assert ask(scene, "/api/nothing", **changed).status == api


@pytest.mark.threat("T-P6")
def test_a_token_anywhere_else_is_none(scene: Scene) -> None:
    """In the address or in a cookie it would end up in logs, or be sent by other pages."""
    assert ask(scene, f"/api/live?token={TOKEN}", authorization=None).status == 401
    assert ask(scene, "/api/live", authorization=None, cookie=f"token={TOKEN}").status == 401


@pytest.mark.threat("T-P6")
@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", None,
             "text/plain; application/json", "application/jsonp"],
)  # fmt: skip
def test_what_a_form_can_send_is_refused(scene: Scene, kind: str | None) -> None:
    """Only application/json, which another origin cannot send without asking first, and asking is refused."""
    with open_sandbox("demo", create=True) as folder:
        body = json.dumps({"sandbox": "demo", "rule": "evil.test", "exactly": True}).encode()
        assert ask(scene, "/api/allow", method="POST", body=body, content_type=kind).status == 415
        assert "evil.test" not in Path(folder.allowlist_path).read_text()
        assert ask(scene, "/api/allow", method="POST", body=body).status == 200
        assert "evil.test" in Path(folder.allowlist_path).read_text()


@pytest.mark.threat("T-P6")
def test_other_methods_and_upgrades_are_refused(scene: Scene) -> None:
    """No preflight is ever answered with a yes, and there is no WebSocket, whoever asks."""
    for method in ("OPTIONS", "HEAD", "PUT", "DELETE", "PATCH"):
        answer = ask(scene, "/api/allow", method=method, access_control_request_method="POST")
        assert answer.status == 405, method
    for origin in (scene.origin, "http://evil.test"):
        upgraded = ask(
            scene, "/api/live", connection="Upgrade", upgrade="websocket", origin=origin,
            sec_websocket_version="13", sec_websocket_key="dGhlIHNhbXBsZSBub25jZQ==",
        )  # fmt: skip
        assert upgraded.status == 405


@pytest.mark.threat("T-P6")
@pytest.mark.parametrize(
    ("request_head", "status"),
    [
        ("GET / HTTP/1.1\r\nHost: {own}\r\nHost: evil.test\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: {own}\r\nOrigin: http://{own}\r\nOrigin: http://evil.test\r\n\r\n", 400),
        ("GET /api/x HTTP/1.1\r\nHost: {own}\r\nAuthorization: Bearer x\r\nAuthorization: {good}\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\n\r\n", 400),
        ("GET / HTTP/1.0\r\n\r\n", 421),
        ("GET http://{own}/ HTTP/1.1\r\nHost: {own}\r\nAuthorization: {good}\r\n\r\n", 404),
        ("GET /../page.js HTTP/1.1\r\nHost: {own}\r\nAuthorization: {good}\r\n\r\n", 404),
        ("GET /%70age.js HTTP/1.1\r\nHost: {own}\r\nAuthorization: {good}\r\n\r\n", 404),
        ("GET /server.py HTTP/1.1\r\nHost: {own}\r\nAuthorization: {good}\r\n\r\n", 404),
        ("GET /api/live?sandbox=../x HTTP/1.1\r\nHost: {own}\r\nAuthorization: {good}\r\n\r\n", 404),
        ("GET /api/live?sandbox=-x HTTP/1.1\r\nHost: {own}\r\nAuthorization: {good}\r\n\r\n", 404),
        ("GET /api/allow HTTP/1.1\r\nHost: {own}\r\nAuthorization: {good}\r\n\r\n", 404),
        ("nonsense\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: {own}\r\nX: {long}\r\n\r\n", 431),
        ("POST /api/allow HTTP/1.1\r\nHost: {own}\r\nAuthorization: {good}\r\nContent-Type: application/json\r\n"
         "Content-Length: 99999999\r\n\r\n", 413),
        ("POST /api/allow HTTP/1.1\r\nHost: {own}\r\nAuthorization: {good}\r\nContent-Type: application/json\r\n"
         "Transfer-Encoding: chunked\r\n\r\n", 400),
        ("POST /api/allow HTTP/1.1\r\nHost: {own}\r\nAuthorization: {good}\r\nContent-Type: application/json\r\n"
         "Content-Length: 5\r\n\r\n[1,2]", 400),
        ("POST /api/allow HTTP/1.1\r\nHost: {own}\r\nAuthorization: {good}\r\nContent-Type: application/json\r\n"
         "Content-Length: 5\r\n\r\n{{{{{{{{{{", 400),
    ],
)  # fmt: skip
def test_odd_requests(scene: Scene, request_head: str, status: int) -> None:
    """What could be read in two ways, what is too large, what is not there: a plain refusal each."""
    text = request_head.format(own=f"127.0.0.1:{scene.port}", good=f"Bearer {TOKEN}", long="x" * 20_000)
    assert exchange(scene, text.encode()).status == status


@pytest.mark.threat("T-P6")
def test_loopback_only(scene: Scene) -> None:
    """It listens on 127.0.0.1 and on nothing else, not even on another address of this machine."""
    assert ask(scene, "/").status == 200
    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.2", scene.port), 5):
        pass


def test_nobody_can_hold_it_up(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that says nothing is let go, and there is a limit to how many there are at a time."""
    monkeypatch.setattr(server_module, "_PATIENCE_S", 0.2)
    monkeypatch.setattr(server_module, "_MAX_CONNECTIONS", 2)
    silent = [socket.create_connection(("127.0.0.1", scene.port), 10) for _ in range(3)]
    assert sorted(peer.recv(13) for peer in silent) == [b"", b"", b"HTTP/1.1 503 "]
    for peer in silent:
        peer.close()
    assert ask(scene, "/").status == 200


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/api/allow", {}),
        ("/api/allow", {"sandbox": "demo"}),
        ("/api/allow", {"sandbox": "demo", "rule": 7}),
        ("/api/allow", {"sandbox": "demo", "rule": "*"}),
        ("/api/allow", {"sandbox": "demo", "rule": "a.test\n*"}),
        ("/api/allow", {"sandbox": "demo", "rule": "a.test # x\nb.test", "exactly": True}),
        ("/api/allow", {"sandbox": "demo", "rule": "a.test", "exactly": "yes"}),
        ("/api/allow", {"sandbox": "nowhere", "rule": "a.test"}),
        ("/api/allow", {"sandbox": "../demo", "rule": "a.test"}),
        ("/api/block", {"sandbox": "demo", "rule": "<b>"}),
        ("/api/answer", {"sandbox": "demo", "id": "1-ab12-99", "allow": True, "always": False}),
        ("/api/answer", {"sandbox": "demo", "id": "1-ab12-1", "allow": 1, "always": False}),
        ("/api/answer", {"sandbox": "demo", "id": "1-ab12-1", "allow": "true", "always": False}),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_said_and_changes_nothing(scene: Scene, path: str, asked: dict[str, Any]) -> None:
    """Nothing is guessed, and nothing that is merely true is a yes."""
    command = scene.run("demo", "sleep 1")
    command.ask(1, "asked.test")
    before = Path(command.folder.allowlist_path).read_text()
    assert act(scene, path, expect=409, **asked)["error"]
    assert Path(command.folder.allowlist_path).read_text() == before
    assert (command.answers, list(command.questions)) == ([], [1])


@pytest.mark.threat("T-P4")
def test_a_link_that_others_may_see_is_good_once(scene: Scene) -> None:
    """What stands in the list of processes opens one page. A second use is taken for what it is."""
    ticket = scene.ticket.issue()
    for wrong in ("", "x", ticket[:-1], None, 7):
        act(scene, "/api/open", expect=401, ticket=wrong)
    foreign = ask(
        scene, "/api/open", method="POST", body=json.dumps({"ticket": ticket}).encode(), origin="http://evil.test"
    )
    assert foreign.status == 403
    assert act(scene, "/api/open", ticket=ticket) == {"token": TOKEN}
    assert scene.thefts == 0
    act(scene, "/api/open", expect=401, ticket=ticket)
    assert scene.thefts == 1


def test_a_page_that_leaves_is_forgotten(scene: Scene) -> None:
    """No descriptor stays open for a page that is gone."""
    scene.log("demo", blocked("a.test", number=1))
    descriptors = Path("/proc/self/fd")
    with Live(scene, "?sandbox=demo") as live:
        live.until(lambda said: "rows" in said)
        assert _audit_files(descriptors) > 0
    wait_until(lambda: not _audit_files(descriptors), "the log is closed")


def _audit_files(descriptors: Path) -> int:
    found = 0
    for each in descriptors.iterdir():
        try:
            found += str(each.readlink()).endswith("audit.jsonl")
        except OSError:
            continue
    return found


def test_colours_can_be_read() -> None:
    """Text has a contrast of at least 4.5 (WCAG AA) on all that it stands on, edges and bars 3, in both schemes."""
    css = files("exeat.ui").joinpath("page.css").read_text()
    schemes = [dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6});", part)) for part in css.split("@media", 2)[:2]]
    assert [len(scheme) for scheme in schemes] == [11, 11]
    for scheme in schemes:
        for text in ("ink", "quiet", "accent", "stop"):
            for ground in ("paper", "sheet", "accent-wash"):
                assert _contrast(scheme[text], scheme[ground]) >= 4.5, (text, ground)
        assert _contrast(scheme["accent-ink"], scheme["accent"]) >= 4.5
        for edge in ("edge", "accent"):
            assert min(_contrast(scheme[edge], scheme[ground]) for ground in ("paper", "sheet")) >= 3, edge


def _contrast(one: str, other: str) -> float:
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    shares = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@contextmanager
def exeat_ui(home: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    argv = [sys.executable, "-m", "exeat", "ui", *options]
    given = environment(EXEAT_HOME=str(home), COLUMNS="80")
    with subprocess.Popen(argv, env=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        yield child
        child.kill()


def test_the_command_prints_a_link_that_works_and_ends_quietly(tmp_path: Path) -> None:
    """The link has a new key each time, behind the #. Ctrl-C is the way to end it, and no error."""
    keys = set()
    for number in (signal.SIGINT, signal.SIGTERM):
        with exeat_ui(tmp_path) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "The page is at\n"
            child.stdout.readline()
            link = re.fullmatch(r"  http://(127\.0\.0\.1:\d+)/#([\w-]{43})\n", child.stdout.readline())
            assert link is not None
            keys.add(link[2])
            for key, status in ((link[2], b"404"), ("x" * 43, b"401")):
                with socket.create_connection(("127.0.0.1", int(link[1].partition(":")[2])), 10) as peer:
                    peer.sendall(
                        f"GET /x HTTP/1.1\r\nHost: {link[1]}\r\nAuthorization: Bearer {key}\r\n\r\n".encode("ascii")
                    )
                    assert peer.recv(12).split(b" ")[1] == status
            child.send_signal(number)
            assert "Ctrl-C ends it" in child.stdout.read()
            assert child.stderr is not None
            assert (child.wait(60), child.stderr.read()) == (0, "")
    assert len(keys) == 2


def test_a_port_that_cannot_be_had_is_said(scene: Scene, tmp_path: Path) -> None:
    """Taken, and no port at all: a sentence and an exit status each."""
    for port, status, sentence in (
        (str(scene.port), 2, f"cannot listen on 127.0.0.1:{scene.port}"), ("99999", 2, "--port"), ("-1", 2, "--port"),
        ("http", 2, "--port"),
    ):  # fmt: skip
        with exeat_ui(tmp_path, f"--port={port}") as child:
            out, errors = child.communicate(timeout=20)
        assert (child.returncode, out) == (status, "")
        assert sentence in errors
        assert "Traceback" not in errors


def test_a_browser_that_is_opened_gets_a_link_for_once(tmp_path: Path) -> None:
    """The key never stands in a list of processes; and when the link comes twice, the page ends and says why."""
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\nprintf "%s" "$1" > {tmp_path}/link.new && mv {tmp_path}/link.new {tmp_path}/link\n')
    browser.chmod(0o755)
    argv = [sys.executable, "-m", "exeat", "ui", "--open"]
    given = environment(EXEAT_HOME=str(tmp_path / "home"), BROWSER=f"{browser} %s")
    with subprocess.Popen(argv, env=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        try:
            wait_until((tmp_path / "link").exists, "a link was opened")
            link = re.fullmatch(r"http://(127\.0\.0\.1:(\d+))/#open=([\w-]{43})", (tmp_path / "link").read_text())
            assert link is not None
            answers = []
            for _ in range(2):
                body = json.dumps({"ticket": link[3]})
                with socket.create_connection(("127.0.0.1", int(link[2])), 10) as peer:
                    peer.sendall(
                        f"POST /api/open HTTP/1.1\r\nHost: {link[1]}\r\nContent-Type: application/json\r\n"
                        f"Content-Length: {len(body)}\r\n\r\n{body}".encode("ascii")
                    )
                    answers.append(peer.makefile("rb").read())
            out, errors = child.communicate(timeout=20)
        finally:
            child.kill()
    token = json.loads(answers[0].partition(b"\r\n\r\n")[2])["token"]
    assert f"/#{token}" in out
    assert token != link[3]
    assert token.encode() not in answers[1]
    assert child.returncode == 1
    assert "used twice" in errors
