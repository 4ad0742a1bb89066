"""What --learn proposes to share: the command chose what it wrote, so no folder that programs outside go by."""

from __future__ import annotations

from pathlib import Path

import pytest

from exeat.run.learn.files import find_surroundings, tightest_folders

pytestmark = pytest.mark.threat("T-M6")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    for folder in ("proj", "data", "settings/shell", "more/nvim", "code/other/src", "code/other/.git"):
        (home / folder).mkdir(parents=True)
    (home / "settings/shell/bashrc").write_text("")
    (home / ".bashrc").symlink_to("settings/shell/bashrc")
    (home / ".nvim").symlink_to(home / "more/nvim")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(home / "proj")
    return home.resolve()


@pytest.mark.parametrize(
    "path", ["settings/shell/bashrc", "settings/shell/new", "settings/new", "more/nvim/init.lua", "more/new"]
)
def test_folders_that_settings_are_links_to_are_not_proposed(home: Path, path: str) -> None:
    found = tightest_folders([f"{home}/{path}", f"{home}/data/file"], find_surroundings({}))
    assert found.write == (f"{home}/data",)
    assert len(found.left_out) == 1


@pytest.mark.parametrize("path", ["code/other/src/main.py", "code/other/new"])
def test_other_repositories_are_not_proposed(home: Path, path: str) -> None:
    found = tightest_folders([f"{home}/{path}", f"{home}/data/file"], find_surroundings({}))
    assert found.write == (f"{home}/data",)
