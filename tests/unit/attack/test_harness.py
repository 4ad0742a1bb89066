"""How the harness judges: by evidence from outside, by a control, and never in favour of a jail that proves nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from exeat.attack.harness import attack
from exeat.attack.probes import GROUPS
from exeat.attack.scorecard import Seen

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the corpus is written for Linux"),
]


def _exeat(folder: Path, body: str) -> tuple[str, ...]:
    """A stand-in for exeat that gets the same arguments."""
    script = folder / "stand_in.py"
    script.write_text(f"import os, sys\ncommand = sys.argv[sys.argv.index('--') + 1:]\n{body}\n")
    return sys.executable, "-I", str(script)


def test_a_jail_that_does_nothing_stops_nothing(tmp_path: Path) -> None:
    """Whatever works without a jail is seen to escape."""
    card = attack("netns", groups=["udp"], exeat=_exeat(tmp_path, "os.execv(command[0], command)"))
    assert {row.seen for row in card.rows} <= {Seen.ESCAPED, Seen.NO_CONTROL}
    assert [row.evidence for row in card.rows if row.id == "E1.udp4"] == ["arrived at udp v4"]
    assert card.status == 1


def test_a_jail_that_does_not_start_scores_nothing(tmp_path: Path) -> None:
    """No answer is no proof: broken, not stopped."""
    card = attack("netns", groups=["udp"], exeat=_exeat(tmp_path, "sys.exit('no such jail')"))
    assert {row.seen for row in card.rows} <= {Seen.BROKEN, Seen.NO_CONTROL}
    assert "no such jail" in next(row.said for row in card.rows if row.id == "E1.udp4")
    assert card.status == 1


def test_a_probe_that_lies_is_not_believed(tmp_path: Path) -> None:
    """What counts is what arrived. A command that says "done" for every probe has not escaped by that."""
    body = """
import json
for id in json.loads(command[-1]):
    print(json.dumps({"id": id, "done": True, "said": "I am out", "secret": "victim-guess"}))
"""
    card = attack("netns", groups=["udp", "processes"], exeat=_exeat(tmp_path, body))
    believed = [row.id for row in card.rows if row.seen is Seen.ESCAPED]
    deeds = {probe.id for probe in GROUPS["processes"].probes if probe.evidence.value == "deed"}
    assert set(believed) <= deeds
    assert next(row.seen for row in card.rows if row.id == "E1.udp4") is Seen.STOPPED
    assert next(row.seen for row in card.rows if row.id == "E7.environ") is Seen.STOPPED


def test_a_jail_that_breaks_everything_does_not_score(tmp_path: Path) -> None:
    """What must work does not, and that is a failure."""
    body = """
import json
for id in json.loads(command[-1]):
    print(json.dumps({"id": id, "done": False, "said": "nothing works"}))
"""
    card = attack("netns", groups=["inside"], exeat=_exeat(tmp_path, body))
    assert {row.seen for row in card.rows} == {Seen.BROKEN}
    assert card.status == 1


def test_to_say_that_it_works_is_not_enough(tmp_path: Path) -> None:
    """The allowed host must have been reached, as seen from there."""
    body = """
import json
for id in json.loads(command[-1]):
    print(json.dumps({"id": id, "done": True, "said": "all fine"}))
"""
    card = attack("netns", groups=["inside"], exeat=_exeat(tmp_path, body))
    assert next(row.seen for row in card.rows if row.id == "W1.allowed") is Seen.BROKEN
