"""The files that the corpus attacks: what got to them is seen from outside, and they leave nothing behind."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from exeat.attack.outside.belongings import OPEN, Belongings
from exeat.attack.outside.kernel_objects import send_to_queue

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the corpus is written for Linux")


@pytest.fixture
def belongings(tmp_path: Path) -> Iterator[Belongings]:
    with contextlib.ExitStack() as stack:
        yield Belongings(tmp_path, stack, shared=False)


def test_a_token_is_found_in_contents_names_and_links(belongings: Belongings) -> None:
    (belongings.home / ".bashrc").write_text("see token-1 here")
    (belongings.home / "token-2").touch()
    (belongings.project / ".git" / "hooks" / "link").symlink_to("/token-3")
    assert belongings.where("token-1") == ["home/.bashrc"]
    assert belongings.where("token-2") == ["home/token-2"]
    assert belongings.where("token-3") == ["home/project/.git/hooks/link"]
    assert belongings.where("token-4") == []


def test_the_project_may_be_changed(belongings: Belongings) -> None:
    """As far as probes need it, and what exeat has taken out of use."""
    (belongings.project / OPEN / "token-1").write_text("token-1")
    (belongings.project / ".cursor.exeat-blocked").write_text("token-1")
    assert belongings.where("token-1") == []


def test_what_is_gone_or_has_other_rights_is_seen(belongings: Belongings) -> None:
    assert belongings.where("gone home/.hushlogin") == []
    (belongings.home / ".hushlogin").unlink()
    (belongings.home / ".inputrc").chmod(0o755)
    assert belongings.where("gone home/.hushlogin") == ["home/.hushlogin"]
    assert belongings.where("mode home/.inputrc") == ["home/.inputrc"]
    assert belongings.where("mode home/.vimrc") == []


def test_programs_outside_hear_what_they_are_told(belongings: Belongings) -> None:
    scene = belongings.scene()
    with open(scene["fifo"], "wb", buffering=0) as fifo:
        fifo.write(b"token-1")
    if "queue" in scene:
        send_to_queue(scene["queue"], b"token-2")
        assert belongings.where("token-2") != []
    assert belongings.where("token-1") != []
    assert belongings.where("token-3") == []


def test_each_run_finds_it_as_it_was(belongings: Belongings) -> None:
    (belongings.home / ".bashrc").write_text("token-1")
    (belongings.home / ".ssh").rename(belongings.home / "elsewhere")
    belongings.lay_out()
    assert belongings.where("token-1") == []
    assert (belongings.home / ".ssh" / "id_ed25519").read_text().strip() == belongings.secret
    assert not (belongings.home / "elsewhere").exists()


def test_nothing_is_left(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        scene = Belongings(tmp_path, stack, shared=False).scene()
        assert not scene.get("memory") or Path(scene["memory"]).exists()
    assert not scene.get("memory") or not Path(scene["memory"]).exists()
    if "queue" in scene:
        with pytest.raises(FileNotFoundError):
            send_to_queue(scene["queue"], b"gone")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_capability_is_seen_if_it_counts(belongings: Belongings) -> None:
    program = belongings.project / OPEN / "program-token-1"
    program.touch()
    assert belongings.where("token-1") == []
    os.setxattr(program, "security.capability", b"\x01\0\0\x02\0\x20\0\0" + bytes(12))
    assert belongings.where("token-1") == ["program-token-1, with a capability"]
