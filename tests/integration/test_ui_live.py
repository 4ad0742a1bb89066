"""The page of `exeat ui`, over raw sockets: what it is told, and what its buttons do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from exeat.sandbox.folder import open_sandbox, remove_sandbox
from exeat.ui import server as server_module
from tests.support.runs.ui_scene import Live, Scene, act, allowed, blocked

EVIL = '<img src=x onerror="window.owned=1">'


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.setenv("EXEAT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(server_module, "TICK_S", 0.04)  # so that tests wait less
    with Scene(tmp_path / "home") as made:
        yield made


def test_what_a_page_is_told(scene: Scene) -> None:
    """Sandboxes, the one that is looked at, its past, and then what happens, as it happens."""
    command = scene.run("demo", f"sh -c {EVIL}")
    command.status["other_rules"] = ["own.test"]
    with open_sandbox("quiet", create=True):
        pass
    scene.log("demo", allowed("good.test", number=1, received=500), blocked(EVIL, number=2),
              blocked("api.x.test", number=3, port=8443), events={"start": {"pid": 1}})  # fmt: skip
    with Live(scene, "?sandbox=demo") as live:
        demo, quiet = live.until(lambda said: "sandboxes" in said)["sandboxes"]
        assert (demo["name"], demo["running"], demo["jails"], demo["modes"]) == ("demo", 1, ["netns"], ["ask"])
        assert (quiet["name"], quiet["running"], quiet["used"]) == ("quiet", 0, None)
        sandbox = live.until(lambda said: "sandbox" in said)["sandbox"]
        assert sandbox["commands"][0]["command"] == f"sh -c {EVIL}"
        assert sandbox["commands"][0]["other_rules"] == ["own.test"]
        assert {"text", "line", "deny"} == set(sandbox["rules"][0])
        first = live.until(lambda said: "rows" in said)
        assert first["first"] is True
        start, decision, end, evil, odd_port = first["rows"]
        assert start["said"] == "A command started."
        assert (decision["ended"], end["ended"], decision["request"]) == (False, True, end["request"])
        assert (end["sent"], end["received"], end["rule"]) == (800, 500, "good.test")
        assert (evil["host"], evil["offers"], evil["allowed"]) == (EVIL, [], False)
        assert odd_port["offers"] == ["api.x.test:8443", ".api.x.test:8443"]
        scene.log("demo", blocked("late.test", number=4))
        later = live.until(lambda said: "rows" in said)
        assert ([row["host"] for row in later["rows"]], later["first"]) == (["late.test"], False)
        command.ask(7, "asked.test")
        question = live.until(lambda said: said.get("questions"))["questions"][0]
        assert (question["sandbox"], question["id"], question["rule"]) == ("demo", "1-ab12-7", "asked.test")
        assert 0 < question["left_s"] <= 30
        act(scene, "/api/answer", sandbox="demo", id="1-ab12-7", allow=True, always=False)
        live.until(lambda said: said.get("questions") == [])
        assert command.answers == [(7, True, False)]


def test_questions_of_other_sandboxes_are_told_too(scene: Scene) -> None:
    """A question does not wait until someone looks at its sandbox."""
    with open_sandbox("demo", create=True):
        pass
    scene.run("other", "sleep 1").ask(1, "asked.test")
    with Live(scene, "?sandbox=demo") as live:
        question = live.until(lambda said: said.get("questions"))["questions"][0]
        assert question["sandbox"] == "other"


@pytest.mark.parametrize(
    ("host", "port", "reason", "offers", "inside"),
    [
        ("a.test", 443, "not-listed", ["a.test", ".a.test"], False),
        ("a.test", 8080, "port-not-listed", ["a.test:8080", ".a.test:8080"], False),
        ("co.uk", 443, "not-listed", ["co.uk"], False),
        ("192.0.2.7", 443, "address-not-listed", ["192.0.2.7"], True),
        ("8.8.8.8", 53, "address-not-listed", ["8.8.8.8:53"], False),
        ("10.0.0.1", 80, "address-not-listed", ["10.0.0.1"], True),
        ("2606:4700::1", 443, "address-not-listed", ["[2606:4700::1]"], False),
        ("a.test", 443, "denied-by-rule", [], False),
        ("a.test", 443, "private-address", [], False),
        ("not a host", 443, "not-listed", [], False),
        ("", 0, "not-listed", [], False),
    ],
)  # fmt: skip
def test_which_rule_would_help(
    scene: Scene, host: str, port: int, reason: str, offers: list[str], inside: bool
) -> None:
    """A rule is offered only where it helps, as it would stand in the list, and none for everybody's names."""
    scene.log("demo", blocked(host, number=1, port=port, reason=reason))
    with Live(scene, "?sandbox=demo") as live:
        row = live.until(lambda said: "rows" in said)["rows"][0]
    assert (row["offers"], row["inside"]) == (offers, inside)


def test_of_a_long_log_only_the_end_is_read(scene: Scene) -> None:
    """The past is bounded, and lines that come during the first look are told once."""
    scene.log("demo", *(blocked(f"n{number}.test", number=number) for number in range(2500)))
    with Live(scene, "?sandbox=demo") as live:
        rows = live.until(lambda said: "rows" in said)["rows"]
        assert (len(rows), rows[0]["host"], rows[-1]["host"]) == (2000, "n500.test", "n2499.test")
        scene.log("demo", blocked("next.test", number=1))
        assert [row["host"] for row in live.until(lambda said: "rows" in said)["rows"]] == ["next.test"]


def test_a_sandbox_that_comes_goes_and_comes_again(scene: Scene) -> None:
    """The page may wait for a sandbox; one that is removed is said to be gone, and a new one begins again."""
    with Live(scene, "?sandbox=demo") as live:
        assert live.until(lambda said: "sandboxes" in said)["sandboxes"] == []
        assert "no sandbox demo" in live.until(lambda said: "sandbox" in said)["sandbox"]["problem"]
        scene.log("demo", blocked("one.test", number=1))
        told: dict[str, Any] = {}  # of rows and the sandbox's rules, either may come first

        def is_told(said: dict[str, Any]) -> bool:
            told.update({name: what for name, what in said.items() if what})
            return "rows" in told and "rules" in told.get("sandbox", {}) and "problem" not in told["sandbox"]

        live.until(is_told)
        assert told["rows"][0]["host"] == "one.test"
        remove_sandbox("demo")
        live.until(lambda said: "problem" in said.get("sandbox", {}))
        scene.log("demo", blocked("two.test", number=1))
        again = live.until(lambda said: said.get("first"))
        if not again["rows"]:  # it has seen the new folder before there was a line in its log
            again = live.until(lambda said: said.get("rows"))
        assert [row["host"] for row in again["rows"]] == ["two.test"]


def test_a_folder_that_cannot_be_trusted_is_a_sentence_and_not_an_end(scene: Scene) -> None:
    """Someone else could write to it: it says so, and shows nothing of it."""
    with open_sandbox("demo", create=True) as folder:
        Path(folder.allowlist_path).chmod(0o666)
    with Live(scene, "?sandbox=demo") as live:
        assert live.until(lambda said: "sandboxes" in said)["sandboxes"][0]["problem"]
        assert live.until(lambda said: "sandbox" in said)["sandbox"]["problem"]


def test_the_newest_pages_are_served(scene: Scene) -> None:
    """A browser has six connections to a server; pages must not use them all up. The oldest is told, and ends."""
    pages = [Live(scene) for _ in range(5)]
    assert pages[0].until(lambda said: "elsewhere" in said) == {"elsewhere": True}
    assert pages[0].file.readline() == b"0\r\n"
    for page in pages[1:]:
        assert page.until(lambda said: "sandboxes" in said)
    for page in pages:
        page.close()


def test_allow_block_and_remove(scene: Scene) -> None:
    """The buttons change the list as `exeat proxy` does, and running commands take it at once."""
    command = scene.run("demo", "sleep 1", mode="")
    listed = Path(command.folder.allowlist_path)
    said = act(scene, "/api/allow", sandbox="demo", rule="api.x.test", exactly=True)
    assert (said["taken"], said["closed"], said["failed"], command.reloads) == (1, 1, [], 1)
    assert listed.read_text().endswith("\napi.x.test\n")
    act(scene, "/api/allow", sandbox="demo", rule="typed.test")
    assert listed.read_text().endswith("\napi.x.test\n.typed.test\n")
    act(scene, "/api/block", sandbox="demo", rule="api.x.test")
    assert listed.read_text().endswith("\n.typed.test\n")
    assert "api.x.test" not in listed.read_text()
    act(scene, "/api/allow", sandbox="demo", rule="in.typed.test", exactly=True)
    act(scene, "/api/block", sandbox="demo", rule="in.typed.test")
    denial = next(line for line in listed.read_text().splitlines() if line.startswith("!in.typed.test"))
    act(scene, "/api/remove", sandbox="demo", rule=denial)
    assert "in.typed.test" not in listed.read_text()
    said = act(scene, "/api/remove", expect=409, sandbox="demo", rule=".typed.test")["error"]
    assert "is an allow rule: block it instead" in said
    assert listed.read_text().endswith("\n.typed.test\n")


def test_buttons_reckon_with_running_commands(scene: Scene) -> None:
    """With one that learns, with rules of its own, and with one that says what is not understood: a block holds, an
    allow frees nothing else, and what is not sure is said."""
    command = scene.run("demo", "sleep 1", mode="learn")
    listed = Path(command.folder.allowlist_path)
    listed.write_text("a.test\n")
    assert act(scene, "/api/block", sandbox="demo", rule="a.test")["failed"] == []
    assert listed.read_text() == "!a.test:*\n"
    command.status["mode"] = ""
    command.status["other_rules"] = ["a.test:22", "10.0.0.1"]
    assert act(scene, "/api/allow", sandbox="demo", rule="=a.test:443")["still"] == []
    assert listed.read_text() == "!a.test:1-442\n!a.test:444-65535\na.test:443\n"
    listed.write_text("!*\n")
    for exactly in (True, False):
        said = act(scene, "/api/allow", sandbox="demo", rule="* force", exactly=exactly)
        assert said["still"] == ["line 1 (!*) still denies it"]
    listed.write_text("a.test\n")
    command.status["other_rules"] = ["a.test from=the-future"]
    said = act(scene, "/api/block", sandbox="demo", rule="a.test")
    assert "may still allow it" in said["failed"][0]
    assert listed.read_text() == "!a.test:*\n"
    listed.write_text("a.test\n")
    del command.status["other_rules"]
    said = act(scene, "/api/block", sandbox="demo", rule="a.test")
    assert said["failed"] == ["a running command does not say what it allows, and may still allow it"]
    assert listed.read_text() == "!a.test:*\n"
