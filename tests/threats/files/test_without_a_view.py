"""The control of the attacks on files: in the same jail with `--files host` they get out, and are seen to."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from exeat.attack.harness import attack
from exeat.attack.probes import GROUPS
from tests.support.runs.running import AS_ROOT

pytestmark = pytest.mark.threat("T-M1")

_STAND_IN = """
import os, sys
words = [sys.executable, "-P", "-m", "exeat", *sys.argv[1:]]
words[words.index("--quiet"):words.index("--quiet")] = ["--files", "host"]
os.execv(words[0], words)
"""
# What the jail holds without a view: descriptors that were left open, what needs capabilities, its own namespaces. And
# sockets, for which it looks.
_HELD_ALL_THE_SAME = ("M1.held", "M1.held-folder", "M2.held", "M2.held-folder", "M2.handle", "M2.proc-fd")


@AS_ROOT
def test_without_a_view_files_are_the_hosts(tmp_path: Path) -> None:
    """As root, who has a control for every probe."""
    script = tmp_path / "stand_in.py"
    script.write_text(_STAND_IN)
    card = attack("netns", groups=["files"], exeat=(sys.executable, "-I", str(script)))
    tried = [row for row in card.rows if row.id[:2] in {"M1", "M2"} and not row.lack]
    rows = {row.id: row for row in tried if "/project/" not in row.control}  # that is protected all the same
    held = {id_ for id_, row in rows.items() if row.seen.value == "stopped"}
    assert sorted(held - set(_HELD_ALL_THE_SAME)) == []
    assert {row.seen.value for id_, row in rows.items() if id_ not in held} <= {"ESCAPED", "known limit"}
    assert len(rows) > len(GROUPS["files"].probes) / 2
