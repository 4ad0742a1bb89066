"""The page: a question that is not the one which waits, and another user who reads the list of processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from exeat.sandbox import control
from exeat.sandbox.folder import open_sandbox
from exeat.ui import server as server_module
from tests.support.clients.chromium import Chromium, Tab
from tests.support.gateways.scene import wait_until
from tests.support.runs.running import AS_ROOT, NOBODY, TIMEOUT_S, Running, as_user, environment, folder_of, python
from tests.support.runs.ui_scene import TOKEN, Scene

READY = "document.querySelector('#question-list button:not([aria-disabled])')"
SHOWN = "[...document.querySelectorAll('#question-list li:not(.gone) .host')].map((each) => each.innerText)"
# Waits at the gateway for as long as there is a question.
CONNECT = """
import socket, sys
with socket.create_connection((sys.argv[1], 80), timeout=30) as peer:
    peer.sendall(f"GET / HTTP/1.1\\r\\nHost: {sys.argv[1]}\\r\\n\\r\\n".encode())
    peer.recv(100)
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    with Chromium() as made:
        yield made


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.setenv("EXEAT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(server_module, "TICK_S", 0.04)
    with Scene(tmp_path / "home") as made:
        yield made


def asking(folder: Path, host: str) -> Running:
    env = environment(EXEAT_HOME=str(folder / "home"))
    return Running(folder, "--name", "demo", "--ask", "--quiet", command=python(CONNECT, host), env=env)


def waiting() -> list[str]:
    return [each.host for each in control.pending("demo")]


def open_page(browser: Chromium, scene: Scene) -> Tab:
    with open_sandbox("demo", create=True):
        pass
    tab = browser.open(f"{scene.origin}/#{TOKEN}")
    tab.wait("document.querySelector('#sandbox-list li')")
    return tab


@pytest.mark.threat("T-P5")
def test_a_click_for_a_question_of_the_last_run(
    browser: Chromium, scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command ends while its harmless question is shown. Run again, as by a loop, it asks for another host.

    The page looks twice a second, here more rarely. A click before it knows, and what it shows when it knows.
    """
    tab = open_page(browser, scene)
    with asking(tmp_path, "good.test") as first:
        tab.wait(READY)
        assert tab.value(SHOWN) == ["good.test:80"]
        monkeypatch.setattr(server_module, "TICK_S", 2.0)
        tab.value("new Promise((resolve) => setTimeout(resolve, 150))")  # a look that was under way
        first.process.terminate()
        first.wait()
    with asking(tmp_path, "evil.test"):
        wait_until(lambda: waiting() == ["evil.test"], "the other question")
        tab.value(f"{READY}.click()")
        tab.wait("document.querySelector('#question-list .result').innerText")
        assert waiting() == ["evil.test"]
        monkeypatch.setattr(server_module, "TICK_S", 0.04)
        tab.wait(f"{SHOWN}.join() === 'evil.test:80'")
        tab.wait(READY)
        tab.value(f"{READY}.click()")  # a click that is meant for it
        wait_until(lambda: waiting() == [], "the answer")
    tab.close()


@pytest.mark.threat("T-P5")
def test_a_question_with_the_number_of_one_that_has_gone_is_shown(
    browser: Chromium, scene: Scene, tmp_path: Path
) -> None:
    """The page keeps what has gone for some seconds. The next run's first question must not be taken for that."""
    tab = open_page(browser, scene)
    with asking(tmp_path, "one.test") as first:
        tab.wait(f"{SHOWN}.join() === 'one.test:80'")
        first.process.terminate()
        first.wait()
        tab.wait("document.querySelector('#question-list .gone')")
    with asking(tmp_path, "two.test"):
        tab.wait(f"{SHOWN}.join() === 'two.test:80'")
    tab.close()


@pytest.mark.threat("T-P5")
def test_questions_that_come_and_go_do_not_pile_up(browser: Chromium, scene: Scene) -> None:
    """A command asks for 250 hosts at a time and gives up on them, over and over, while someone points at the list.

    What has gone is kept for that someone; all of it, for as long as they look, is more than a page can bear.
    """
    command = scene.run("demo", "agent")
    tab = open_page(browser, scene)
    command.ask(1, "first.test")
    tab.wait(f"{SHOWN}.join() === 'first.test:443'")
    tab.value("document.getElementById('questions').focus()")
    for turn in range(1, 6):
        command.questions.clear()
        for number in range(250):
            command.ask(turn * 1_000 + number, f"h{turn}-{number}.test")
        tab.wait(f"{SHOWN}.includes('h{turn}-249.test:443')")
    assert tab.value("document.querySelectorAll('#question-list li').length") <= 2 * 250
    tab.close()


# Takes the link that a browser was started with, and asks for the token before the browser does. A link to a file
# is followed, as a browser would.
THIEF = r"""
import json, re, socket, sys, urllib.parse
link = sys.argv[1]
if link.startswith("file:"):
    link = open(urllib.parse.unquote(urllib.parse.urlsplit(link).path)).read()
found = re.search(r"http://(127\.0\.0\.1:(\d+))/#open=([\w-]+)", link)
body = json.dumps({"ticket": found[3]})
with socket.create_connection(("127.0.0.1", int(found[2])), 10) as peer:
    head = f"POST /api/open HTTP/1.1\r\nHost: {found[1]}\r\nContent-Type: application/json"
    peer.sendall(f"{head}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
    answer = peer.makefile("rb").read()
print(json.loads(answer.partition(b"\r\n\r\n")[2])["token"])
"""


@pytest.mark.threat("T-P4")
@AS_ROOT
@pytest.mark.parametrize(("uid", "is_let_in"), [(None, True), (NOBODY, False)], ids=["the same user", "another user"])
def test_who_reads_the_list_of_processes_is_not_let_in(uid: int | None, is_let_in: bool) -> None:
    """Another user polls the list, sees the link, and is quicker than a browser that has yet to start.

    With the token all sandboxes can be changed. That the link was used twice shows only when the browser comes, which
    32 open connections keep away.
    """
    with folder_of(None) as folder:
        browser = folder / "browser"
        browser.write_text(f'#!/bin/sh\nprintf "%s" "$1" > {folder}/link.new && mv {folder}/link.new {folder}/link\n')
        browser.chmod(0o755)
        argv = [sys.executable, "-m", "exeat", "ui", "--open"]
        given = environment(EXEAT_HOME=str(folder / "home"), BROWSER=f"{browser} %s")
        with subprocess.Popen(argv, env=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
            try:
                wait_until((folder / "link").exists, "a link was opened")
                link = Path(folder / "link").read_text()
                thief = subprocess.run(
                    [*as_user(uid), *python(THIEF, link)],
                    capture_output=True,
                    text=True,
                    timeout=TIMEOUT_S,
                    check=False,
                )
            finally:
                child.kill()
            out = child.communicate()[0]
    token = thief.stdout.strip()
    assert (bool(token) and f"/#{token}" in out) == is_let_in, thief
