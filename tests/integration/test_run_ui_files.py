"""The page shows what commands changed outside their project, in a real browser; what they wrote stays text."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from exeat.files.layers.saving import save_layer
from exeat.sandbox.folder import open_sandbox
from exeat.ui import server as server_module
from tests.support.clients.chromium import Chromium, Tab, complaints
from tests.support.runs.ui_scene import TOKEN, Scene, act, ask

EVIL = '<img src=x onerror="window.owned=1">'


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.setenv("EXEAT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(server_module, "TICK_S", 0.04)  # so that tests wait less
    with Scene(tmp_path / "home") as made:
        yield made


@pytest.fixture
def real(tmp_path: Path) -> Path:
    """A machine of one folder."""
    folder = tmp_path / "real"
    folder.mkdir()
    (folder / "profile").write_text("one\ntwo\n")
    return folder


def keep(real: Path, name: str, **files: str) -> None:
    """A run in the sandbox has written these files."""
    upper = real.parent / f"upper-{name}-{len(files)}"
    upper.mkdir()
    for path, content in files.items():
        (upper / path).parent.mkdir(parents=True, exist_ok=True)
        (upper / path).write_text(content)
    descriptor = os.open(upper, os.O_RDONLY)
    with open_sandbox(name, create=True) as folder:
        save_layer(folder, [(str(real), descriptor)], 1 << 30)
    os.close(descriptor)


def texts(tab: Tab, selector: str) -> list[str]:
    found = tab.value(f"[...document.querySelectorAll({json.dumps(selector)})].map((each) => each.innerText)")
    assert isinstance(found, list)
    return found


def test_the_page_lists_changes_and_shows_texts(scene: Scene, real: Path) -> None:
    """It hears of a new layer by itself. Names and lines that look like markup or steer a terminal are text."""
    keep(real, "demo", profile=f"one\n{EVIL}\tx\x1b[31m\n", **{f"new/{number}": "x" for number in range(20)})
    with Chromium() as browser:
        tab = browser.open(f"{scene.origin}/#{TOKEN}")
        tab.wait("document.querySelectorAll('#change-rows tr').length === 2")
        assert texts(tab, "#change-rows .kind") == ["Added", "Changed"]
        assert texts(tab, "#change-rows .path") == [f"{real}/new/\n20 files", f"{real}/profile"]
        assert texts(tab, "#change-sum") == ["20 added, 1 changed, 0 removed (68 B)."]
        assert "exeat files apply --name demo PATH" in texts(tab, "#change-hint")[0]
        tab.value("document.querySelector('#change-rows button').click()")
        tab.wait("document.querySelectorAll('.difference span').length > 3")
        assert f"+{EVIL}\tx\\u{{1b}}[31m" in texts(tab, ".difference")[0]
        keep(real, "demo", **{EVIL.replace("/", "|"): "", "profile": "one\ntwo\n"})
        tab.wait(
            "document.querySelectorAll('#change-rows tr').length === 2 && document.body.innerText.includes('onerror')"
        )
        assert tab.value("window.owned") is None
        tab.resize(390, 800)
        assert tab.value("document.documentElement.scrollWidth <= innerWidth") is True
        assert complaints(browser) == []


def test_only_what_is_on_the_list_can_be_read(scene: Scene, real: Path) -> None:
    """The page could otherwise read any file of the user's."""
    (real / "secret").write_text("secret\n")
    keep(real, "demo", profile="new\n")

    def show(path: str) -> Any:
        asked = json.dumps({"sandbox": "demo", "path": path}).encode()
        return ask(scene, "/api/files/text", method="POST", body=asked).said

    assert show(f"{real}/profile")["lines"][-1] == "+new"
    for path in (f"{real}/secret", f"{real}/../real/profile", "/etc/passwd", "", f"{real}"):
        assert "nothing has changed" in show(path)["error"]
    act(scene, "/api/files", expect=409, sandbox="no-such")
    act(scene, "/api/files", expect=409, sandbox="../demo")
    assert ask(scene, "/api/files", method="POST", body=b'{"sandbox":"demo"}', authorization=None).status == 401


def test_a_sandbox_without_layers_shows_no_list(scene: Scene, real: Path) -> None:
    open_sandbox("demo", create=True).close()
    assert act(scene, "/api/files", sandbox="demo")["rows"] == []
    with Chromium() as browser:
        tab = browser.open(f"{scene.origin}/#{TOKEN}")
        tab.wait("!document.getElementById('sandbox').hidden")
        assert tab.value("document.getElementById('changes').hidden") is True
