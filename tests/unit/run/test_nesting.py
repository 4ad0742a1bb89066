"""When the command may make user namespaces, and what is said without."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from exeat.errors import ConfigError
from exeat.file_policy import FilePolicy, FileSettings
from exeat.jail.select import BODIES
from exeat.run.lifecycle import refuse_what_it_lacks
from exeat.run.nesting import advice_on_nesting, refuse_covers, refuse_nesting
from exeat.run.settings import Preparations, RunSettings, make_plan

NEST = FilePolicy(nest=True)


def test_an_ordinary_user_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    refuse_nesting(BODIES["netns"], NEST)


def test_root_may_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(ConfigError, match="not available to root"):
        refuse_nesting(BODIES["netns"], NEST)


@pytest.mark.parametrize("jail", ["nft", "env", "seatbelt"])
def test_other_jails_have_none(jail: str) -> None:
    plan = make_plan(RunSettings(["true"], jail=jail, files=(FileSettings(nest=True),)), Preparations())
    with pytest.raises(ConfigError, match=f"not in the {jail} jail"):
        refuse_what_it_lacks(BODIES[jail], plan)


def test_what_a_policy_file_asks_for_is_refused_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan(RunSettings(["true"]), Preparations(files=(FileSettings(nest=True),)))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    refuse_what_it_lacks(BODIES["netns"], plan)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(ConfigError, match="not available to root"):
        refuse_what_it_lacks(BODIES["netns"], plan)


def test_files_of_the_host_and_nest_are_a_contradiction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ConfigError, match="--files host"):
        refuse_nesting(BODIES["netns"], FilePolicy(mode="host", nest=True))


def test_what_lies_in_a_shared_folder_cannot_be_hidden(tmp_path: Path) -> None:
    project, other = tmp_path / "project", tmp_path / "project-2"
    project.mkdir()
    other.mkdir()
    inside, outside = project / "secrets.json", other / "secrets.json"
    refuse_covers([str(outside)], [str(project)])
    with pytest.raises(ConfigError, match="could not be protected from it"):
        refuse_covers([str(outside), str(inside)], [str(project)])
    with pytest.raises(ConfigError, match="could not be protected from it"):
        refuse_covers([str(project)], [str(project)])
    inside.write_text("")
    link = other / "link"
    link.symlink_to(inside)
    with pytest.raises(ConfigError, match="link"):
        refuse_covers([str(link)], [str(project)])


def test_who_tried_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert advice_on_nesting(()) == ""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    line = advice_on_nesting(("bwrap", "chromium"))
    assert line.startswith("bwrap, chromium: refused a user namespace")
    assert line.endswith("--nest allows it")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert "not for root" in advice_on_nesting(("bwrap",))
