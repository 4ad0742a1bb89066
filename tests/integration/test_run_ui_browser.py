"""The page in a real browser: what a person sees and can do, and what a page of another origin cannot."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from exeat.sandbox.folder import open_sandbox
from exeat.ui import server as server_module
from exeat.ui.guard import Guard, Refusal
from exeat.wire.http1 import RequestHead
from tests.support.clients.chromium import Chromium, Tab, complaints, text
from tests.support.clients.hostile_page import ATTACKS, NaiveServer
from tests.support.fixtures.gateways import StartOrigin
from tests.support.gateways.scene import wait_until
from tests.support.runs.running import environment, run_argv
from tests.support.runs.ui_scene import TOKEN, Command, Scene, allowed, blocked

EVIL = '<img src=x onerror="window.owned=1">'
TURNED = "good.test\u202egnp.evil\x1b[31m\u2066"
REBOUND = "evil.test"


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    with Chromium({REBOUND: "127.0.0.1"}) as made:
        yield made


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.setenv("EXEAT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(server_module, "TICK_S", 0.04)  # so that tests wait less
    with Scene(tmp_path / "home") as made:
        yield made


@pytest.fixture
def command(scene: Scene) -> Command:
    """A sandbox with a past, in which a command runs."""
    made = scene.run("demo", f"sh -c {EVIL}")
    scene.log(
        "demo",
        *(allowed("files.test", number=number, received=1_000_000) for number in range(1, 4)),
        allowed("small.test", number=4, received=1_500),
        *(blocked("api.x.test", number=number) for number in range(5, 8)),
        blocked(EVIL, number=8, method="<b>GET"),
        blocked(TURNED, number=9),
        blocked("a" * 60 + "." + "b" * 60 + ".example.com", number=10),
        blocked("gist.test", number=11, reason="denied-by-rule", rule="!gist.test"),
    )
    return made


def show(browser: Chromium, scene: Scene, **settings: int | bool) -> Tab:
    tab = browser.open(f"{scene.origin}/#{TOKEN}", **settings)  # type: ignore[arg-type]
    tab.wait("document.querySelector('#decision-rows tr, #no-sandbox:not([hidden])')")
    return tab


def test_a_person_looks_on(browser: Chromium, scene: Scene, command: Command) -> None:
    """Sandboxes, decisions newest first, sums by host; text from the log stays text; the key leaves the address bar."""
    tab = show(browser, scene)
    tab.wait("document.querySelectorAll('#blocked li').length === 5 && document.querySelector('#byte-rows tr')")
    assert tab.value("location.href") == f"{scene.origin}/"
    assert text(tab, "#sandbox-list .name") == ["demo"]
    hosts = text(tab, "#decision-rows .host")
    assert (len(hosts), hosts[0], hosts[-1]) == (11, "gist.test:443", "files.test:443")
    assert f"{EVIL}:443" in hosts
    assert "good.test\\u{202e}gnp.evil\\u{1b}[31m\\u{2066}:443" in hosts
    assert tab.value("[window.owned ?? null, document.querySelectorAll('#frame img').length]") == [None, 0]
    # Two lines of the log are one row, with the bytes of the second.
    assert text(tab, "#decision-rows .bytes")[-1] == "1.0 MB"
    assert text(tab, "#byte-rows .host") == ["files.test", "small.test"]
    assert text(tab, "#byte-rows .number")[:2] == ["3.0 MB", "2.4 kB"]
    first = text(tab, "#blocked li")[0]
    assert "api.x.test:443" in first
    assert "3\u00d7" in first
    assert "would add api.x.test" in first
    # A rule that someone wrote denies it: no other rule would help, so none is offered.
    assert not any("Allow" in each for each in text(tab, "#blocked li") if "gist.test" in each or "img" in each)
    # As it happens, unless paused.
    scene.log("demo", blocked("late.test", number=20))
    tab.wait("document.querySelector('#decision-rows .host').innerText === 'late.test:443'")
    tab.value("document.getElementById('pause').click()")
    scene.log("demo", blocked("later.test", number=21))
    tab.wait("document.getElementById('decision-count').innerText.includes('paused, 1 more since')")
    assert text(tab, "#decision-rows .host")[0] == "late.test:443"
    tab.value("document.getElementById('pause').click()")
    assert text(tab, "#decision-rows .host")[0] == "later.test:443"
    # Filters.
    tab.value("document.querySelector('[value=allowed]').click()")
    assert set(text(tab, "#decision-rows .verdict")) == {"allowed"}
    tab.value("document.querySelector('[value=blocked]').click()")
    assert set(text(tab, "#decision-rows .verdict")) == {"blocked"}
    tab.value("document.querySelector('[type=search]').focus()")
    tab.type("gist")
    assert text(tab, "#decision-rows .host") == ["gist.test:443"]
    # The tab keeps the key, so that it can be loaded again.
    tab.call("Page.reload")
    tab.wait("document.querySelectorAll('#decision-rows tr').length > 5")
    tab.close()
    assert complaints(browser) == []


def test_everything_by_keyboard(browser: Chromium, scene: Scene, command: Command) -> None:
    """Allow a blocked host, block it again, answer a question: with Tab, Enter and the space bar alone."""
    listed = Path(command.folder.allowlist_path)
    tab = show(browser, scene)
    tab.wait("document.querySelector('#blocked button')")
    _tab_to(tab, "Allow api.x.test, port 443 …")
    tab.press("Enter")
    tab.wait("document.activeElement.type === 'radio'")
    panel = text(tab, "#blocked .panel")[0]
    assert "api.x.test this host only" in panel
    assert ".api.x.test with its subdomains" in panel
    assert listed.read_text().count("api.x.test") == 0, "showing a rule adds none"
    tab.press("Tab")
    assert tab.value("document.activeElement.innerText") == "Add api.x.test"
    tab.press("Escape")
    assert tab.value("document.activeElement.getAttribute('aria-label')") == "Allow api.x.test, port 443 …"
    tab.press("Enter", "Tab", "Enter")
    tab.wait("document.querySelector('#blocked .result').innerText.includes('Applied to 1 running command')")
    assert "added api.x.test" in text(tab, "#blocked .result")[0]
    assert listed.read_text().endswith("\napi.x.test\n")
    assert command.reloads == 1
    tab.wait("[...document.querySelectorAll('#rule-list code')].at(0).innerText === 'api.x.test'")

    tab.value("document.querySelector('#add-rule input').focus()")
    tab.type("typed.test")
    tab.wait("document.querySelectorAll('#rule-list li').length === 0")
    tab.press("Enter")
    tab.wait("[...document.querySelectorAll('#rule-list code')].at(0).innerText === '.typed.test'")
    tab.value("document.querySelector('#rule-list li:first-child button').focus()")
    tab.press("Enter")
    tab.wait("document.activeElement.innerText === 'Block it'")
    tab.press(" ")
    tab.wait("document.getElementById('rule-result').innerText.includes('removed .typed.test')")
    assert listed.read_text().endswith("\napi.x.test\n!.typed.test:*\n")  # else the command, which asks, would ask

    command.ask(3, "asked.test", 8443)
    tab.wait("document.querySelectorAll('#question-list button:not([aria-disabled])').length === 4")
    assert tab.value("document.title").startswith("(1) ")
    assert "asked.test, port 8443" in tab.value("document.getElementById('heard-now').innerText")
    assert "Always adds the rule asked.test:8443" in text(tab, "#question-list")[0]
    assert "s left" in text(tab, "#question-list .left")[0]
    tab.value("document.querySelector('#question-list button').focus()")
    tab.press("Tab", "Tab", "Tab", "Enter")
    tab.wait("document.querySelector('#question-list .result').innerText === 'asked.test:8443 is denied'")
    assert command.answers == [(3, False, True)]
    tab.close()
    assert complaints(browser) == []


def _tab_to(tab: Tab, label: str) -> None:
    """Press Tab until the focus is there; every stop on the way must be seen."""
    for _ in range(60):
        tab.press("Tab")
        here = tab.value("""(() => {
            const at = document.activeElement;
            const hasOutline = (each) => getComputedStyle(each).outlineStyle !== 'none';
            const isSeen = hasOutline(at) || hasOutline(at.closest('.choice') ?? at);
            return [at.getAttribute('aria-label'), isSeen, at.outerHTML];
        })()""")
        assert here[1], f"the focus cannot be seen on {here[2][:200]}"
        if here[0] == label:
            return
    raise AssertionError(f"Tab never gets to {label}")


@pytest.mark.threat("T-P5")
def test_a_click_that_was_meant_for_something_else_is_no_answer(
    browser: Chromium, scene: Scene, command: Command
) -> None:
    """A question that has just come does not take a click for a moment, and moves nothing that was there."""
    tab = show(browser, scene)
    before = tab.value("document.querySelector('#rules-title').getBoundingClientRect().top")
    # The click comes in the very frame in which the buttons do.
    tab.value("""new MutationObserver((changes, observer) => {
        const button = document.querySelector('#question-list button');
        if (button) { observer.disconnect(); window.early = button.getAttribute('aria-disabled'); button.click(); }
    }).observe(document.getElementById('question-list'), { childList: true })""")
    command.ask(1, "asked.test")
    tab.wait("window.early === 'true'")
    tab.wait("document.querySelector('#question-list button:not([aria-disabled])')")
    assert command.answers == []
    assert tab.value("document.querySelector('#rules-title').getBoundingClientRect().top") == before
    where = tab.value("""(() => { const box = document.querySelector('#question-list button').getBoundingClientRect();
        return [box.x + box.width / 2, box.y + box.height / 2] })()""")
    tab.click(*where)
    wait_until(lambda: command.answers == [(1, True, False)], "the answer")
    tab.close()


def test_narrow_wide_dark_and_light(browser: Chromium, scene: Scene, command: Command) -> None:
    """Nothing sticks out at 360 or 1400 pixels, and the page follows the scheme of the system."""
    command.ask(1, "asked.test")
    colours = set()
    for width, dark in ((360, False), (360, True), (1400, False), (1400, True)):
        tab = show(browser, scene, width=width, height=740, dark=dark)
        tab.wait("document.querySelector('#question-list li') && document.querySelectorAll('#blocked li').length === 5")
        tab.value("[...document.querySelectorAll('#blocked button')].forEach((each) => each.click())")
        assert text(tab, "#blocked .panel"), "with what unfolds, and a rule as long as a name can be"
        assert tab.value("document.documentElement.scrollWidth") <= width
        wide = tab.value("""[...document.querySelectorAll('main *, #questions *')].filter((each) => {
            const box = each.getBoundingClientRect();
            return box.width && box.right > innerWidth + 1 && !each.closest('.unseen, .commands, .by, thead');
        }).map((each) => each.outerHTML.slice(0, 100))""")
        assert wide == []
        colours.add((dark, tab.value("getComputedStyle(document.body).backgroundColor")))
        tab.close()
    assert len(colours) == 2
    assert complaints(browser) == []


def test_what_is_missing_is_said(browser: Chromium, scene: Scene) -> None:
    """No sandbox yet, no key, a wrong key, a link that is good once: each says what to do."""
    tab = show(browser, scene)
    assert "exeat run --new --name demo" in text(tab, "#no-sandbox")[0]
    with open_sandbox("demo", create=True):
        pass
    tab.wait("document.getElementById('decisions-empty').innerText.includes('Nothing has been decided yet')")
    tab.close()
    for link in ("/", f"/#{'x' * 43}", "/#open=nonsense"):
        tab = browser.open(scene.origin + link)
        tab.wait("!document.getElementById('closed').hidden")
        assert "link" in text(tab, "#closed")[0]
        assert tab.value("document.getElementById('frame').hidden")
        tab.close()
    tab = browser.open(f"{scene.origin}/#open={scene.ticket.issue()}")
    tab.wait("document.getElementById('sandbox-name').innerText === 'demo'")
    assert tab.value("location.href") == f"{scene.origin}/"
    tab.close()


def _watch_judgements(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, int]]:
    """What the server is asked from now on, and the status with which it refuses; 0 if it does not."""
    judged = []
    judge = Guard.judge

    def watch(guard: Guard, head: RequestHead, *, needs_token: bool) -> Refusal | None:
        refusal = judge(guard, head, needs_token=needs_token)
        judged.append((head.method.decode(), head.target.decode(), refusal.status if refusal else 0))
        return refusal

    monkeypatch.setattr(Guard, "judge", watch)
    return judged


def _frames(tab: Tab) -> list[dict[str, str]]:
    return [each["frame"] for each in tab.call("Page.getFrameTree")["frameTree"]["childFrames"]]


def _came_of(frame: dict[str, str]) -> str:
    """Of a frame: nothing yet, or what it shows."""
    if frame.get("unreachableUrl"):
        return "blocked"
    return "shown" if frame["url"].startswith("http") else ""


@pytest.mark.threat("T-P6")
@pytest.mark.parametrize("name", ["127.0.0.1", REBOUND], ids=["same-site", "cross-site"])
def test_another_origin_cannot_drive_it(
    browser: Chromium, scene: Scene, command: Command, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """All that a page can do to another server works against one without guards, and nothing does against ours.

    It even knows the token here, which it cannot.
    """
    command.ask(1, "asked.test")
    asked = {"sandbox": "demo", "rule": "evil.test", "exactly": True}
    with NaiveServer() as hostile, NaiveServer() as victim:
        tab = browser.open(f"http://{name}:{hostile.port}/")

        def attack(target: str, socket: str) -> dict[str, str]:
            given = ", ".join(map(json.dumps, (target, socket, TOKEN, asked)))
            tried = tab.value(f"({ATTACKS})({given})")
            assert isinstance(tried, dict)
            wait_until(lambda: all(map(_came_of, _frames(tab)[-2:])), "the two frames to be loaded, or not")
            return tried | {"form": _came_of(_frames(tab)[-2]), "frame": _came_of(_frames(tab)[-1])}

        assert attack(f"http://127.0.0.1:{victim.port}", f"ws://127.0.0.1:{victim.socket_port}") == {
            "fetch": "read", "fetch_token": "read", "fetch_json": "read", "fetch_simple": "sent", "beacon": "sent",
            "script": "loaded", "image": "loaded", "form": "shown", "frame": "shown", "websocket": "open",
            "window": "held",
        }  # fmt: skip
        wait_until(lambda: len(victim.posted) == 5, "five requests that a server without guards obeys")
        assert [each["rule"] for each in victim.posted if isinstance(each, dict)] == ["evil.test"] * 5

        judged = _watch_judgements(monkeypatch)
        assert attack(scene.origin, f"ws://127.0.0.1:{scene.port}") == {
            "fetch": "blocked", "fetch_token": "blocked", "fetch_json": "blocked", "fetch_simple": "blocked",
            "beacon": "sent", "script": "blocked", "image": "blocked", "form": "blocked", "frame": "blocked",
            "websocket": "blocked", "window": "cut off",
        }  # fmt: skip
        # Two that the browser asked about first, and three that it sent: by a script, as a beacon and as a form.
        wait_until(lambda: len([each for each in judged if each[1] == "/api/allow"]) == 5, "each of the requests")
        assert sorted(each for each in judged if each[1] == "/api/allow") == [
            ("OPTIONS", "/api/allow", 405), ("OPTIONS", "/api/allow", 405),
            ("POST", "/api/allow", 403), ("POST", "/api/allow", 403), ("POST", "/api/allow", 403),
        ]  # fmt: skip
        assert {each[1] for each in judged} == {"/", "/page.js", "/api/allow", "/api/live"}
        assert all(status >= 400 for _, _, status in judged), "not one request of another origin was served"
        assert "evil.test" not in Path(command.folder.allowlist_path).read_text()
        assert (command.reloads, command.answers) == (0, [])
        tab.close()


@pytest.mark.threat("T-P6")
def test_a_name_that_was_turned_to_loopback_cannot_drive_it(browser: Chromium, scene: Scene, command: Command) -> None:
    """DNS rebinding: to the browser it is one origin, so nothing but the name tells. It even knows the token here."""
    act = """(async () => {
        const headers = { Authorization: `Bearer ${"T".repeat(43)}` };
        const live = await fetch("/api/live", { headers });
        headers["Content-Type"] = "application/json";
        const body = JSON.stringify({ sandbox: "demo", rule: "evil.test", exactly: true });
        const allow = await fetch("/api/allow", { method: "POST", headers, body });
        live.body.cancel();
        return [live.status, allow.status];
    })()"""
    assert TOKEN == "T" * 43
    with NaiveServer() as victim:
        tab = browser.open(f"http://{REBOUND}:{victim.port}/")
        assert tab.value(act) == [200, 200], "the name leads there, and a server that does not look answers"
        tab.close()
    tab = browser.open(f"http://{REBOUND}:{scene.port}/")
    assert "this is not the address of this page" in text(tab, "body")[0]
    assert tab.value(act) == [421, 421]
    assert "evil.test" not in Path(command.folder.allowlist_path).read_text()
    tab.go(f"{scene.origin}/#{TOKEN}")
    tab.wait("document.querySelector('#decision-rows tr')")
    assert tab.value(act) == [200, 200], "the same script in the page itself"
    tab.close()


def test_a_question_of_a_real_run_is_answered_on_the_page(
    browser: Chromium, scene: Scene, start_origin: StartOrigin
) -> None:
    """From a jailed program's connect() to a button and back: allowed always is in the list, and never is too."""
    origin = start_origin()
    fetch = f"curl -s http://yes.test:{origin.port}/ && curl -s http://no.test:{origin.port}/; curl -s http://yes.test:{origin.port}/"
    options = [
        "--new",
        "--name",
        "real",
        "--ask",
        "--add-host",
        "yes.test:127.0.0.1",
        "--add-host",
        "no.test:127.0.0.1",
    ]
    argv = run_argv(options, ["sh", "-c", fetch])
    tab = show(browser, scene)
    settings = environment(EXEAT_HOME=str(scene.home))
    with subprocess.Popen(argv, env=settings, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as child:
        for host, button in (("yes", 1), ("no", 3)):
            rows = "[...document.querySelectorAll('#question-list li')]"
            row = f"{rows}.find((each) => each.querySelector('.host').innerText.startsWith('{host}.test:'))"
            tab.wait(f"{row}.querySelector('button:not([aria-disabled])')")
            tab.value(f"{row}.querySelectorAll('button')[{button}].click()")
        child.wait(30)
    assert [b"Host: yes.test:" in head for head in origin.heads] == [True, True]
    listed = (scene.home / "sandboxes" / "real" / "allowlist.txt").read_text()
    assert listed.endswith(f"\nyes.test:{origin.port}\n!no.test:{origin.port}\n")
    tab.wait("document.querySelectorAll('#decision-rows .blocked-row').length === 1")
    tab.close()
