"""The corpus in a guest: few runs, what says nothing is named, what only a guest can try is tried in no other jail."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

import pytest

from exeat.attack.guest.inside import inside_guest
from exeat.attack.harness import attack
from exeat.attack.model import Evidence, Scene, apart
from exeat.attack.outside.belongings import OPEN, Belongings
from exeat.attack.probes import GROUPS
from exeat.attack.scorecard import Seen

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the corpus is written for Linux")


def _exeat(folder: Path, body: str) -> tuple[str, ...]:
    """A stand-in for exeat that counts its runs, and gets the same arguments."""
    script = folder / "stand_in.py"
    count = f"open({str(folder / 'runs')!r}, 'a').write(' '.join(sys.argv[1:sys.argv.index('--')]) + '\\n')"
    script.write_text(f"import json, os, sys\ncommand = sys.argv[sys.argv.index('--') + 1:]\n{count}\n{body}\n")
    return sys.executable, "-I", str(script)


_NOTHING = """
for id in json.loads(command[-1]):
    print(json.dumps({"id": id, "done": False, "said": str(json.loads(command[-2])["guest"])}))
"""


def test_only_what_is_done_to_its_own_kernel_is_left_out() -> None:
    left_out = dict(inside_guest().left_out)
    probes = {probe.id: probe for group in GROUPS.values() for probe in group.probes}
    assert left_out.keys() <= probes.keys() | GROUPS.keys()
    assert {probes[id_].evidence for id_ in left_out if id_ in probes} == {Evidence.DEED}
    assert not any(id_.startswith(("G", "E1", "D", "M1", "M2")) for id_ in left_out)
    assert all(left_out.values())


@pytest.mark.thorough
def test_classes_share_a_run_unless_they_need_something_special(tmp_path: Path) -> None:
    classes = ["udp", "dns", "descriptors", "terminal", "guest-files"]
    card = attack("vm", groups=classes, exeat=_exeat(tmp_path, _NOTHING), inside=inside_guest())
    runs = (tmp_path / "runs").read_text().splitlines()
    assert len(runs) == 3
    assert all("--jail vm" in run and "--guest-root" in run for run in runs)
    groups = [row.group for row in card.rows]
    assert list(dict.fromkeys(groups)) == [name for name in GROUPS if name in classes]  # each in one piece
    assert next(row.said for row in card.rows if row.id == "E1.udp4") == "True"  # they are told where they are


@pytest.mark.thorough
def test_a_guest_that_is_none_stops_nothing(tmp_path: Path) -> None:
    """The control of the probes by a card: without a jail they get out."""
    exeat = _exeat(
        tmp_path, "import re; os.execv(command[0], [re.sub('\"guest\":true', '\"guest\":false', w) for w in command])"
    )
    (row,) = (
        row for row in attack("vm", groups=["udp"], exeat=exeat, inside=inside_guest()).rows if row.id == "E1.udp4"
    )
    assert row.seen is Seen.ESCAPED


def test_what_only_a_guest_can_try_is_tried_in_no_other_jail(tmp_path: Path) -> None:
    card = attack("netns", groups=["guest", "guest-machine", "guest-files"], exeat=_exeat(tmp_path, _NOTHING))
    assert card.rows == ()
    assert not (tmp_path / "runs").exists()
    assert card.status == 1  # which proves nothing


def test_a_guest_is_apart_whatever_its_numbers_are() -> None:
    own = {kind: str(Path(f"/proc/self/ns/{kind}").readlink()) for kind in ("net", "pid")}
    assert not apart(Scene(namespaces=own), "pid")
    assert apart(Scene(namespaces=own, guest=True), "pid")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_set_user_id_program_of_another_user_is_seen(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        belongings = Belongings(tmp_path, stack, shared=False)
        program = belongings.project / OPEN / "program-token-1"
        program.touch()
        os.chown(program, 12_345, 12_345)
        assert belongings.where("token-1") == []
        program.chmod(0o4755)
        assert belongings.where("token-1") == ["program-token-1, of another user"]
        os.chown(program, os.geteuid(), -1)
        program.chmod(0o4755)
        assert belongings.where("token-1") == []
