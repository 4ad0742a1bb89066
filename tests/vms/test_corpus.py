"""The escape corpus in a guest: `exeat doctor --attack --jail vm`, as root there, each probe with its control."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from typing import Any

import pytest

from exeat.attack.guest.inside import inside_guest
from exeat.attack.probes import GROUPS
from tests.support.fixtures.vms import Guest
from tests.support.jails.stage import Stage, judge
from tests.support.programs import need
from tests.support.runs.running import AS_ROOT

# What a guest has and other jails have not, and what its way to the network could make a difference to.
_ITS_OWN = ("inside", "dns", "control-plane", "guest", "guest-machine", "guest-files")
_LIMIT_S = 400


# Without virtiofsd, files come by 9p.
_NO_VIRTIOFSD = """
for path in /usr/lib/qemu/virtiofsd /usr/libexec/virtiofsd /usr/lib/virtiofsd $(command -v virtiofsd); do
    test ! -e "$path" || mount --bind /dev/null "$path"
done
exec "$@"
"""


def _attack(
    stage: Stage, guest: Guest, name: str, classes: tuple[str, ...], before: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """The scorecard: in a world where every probe has a target, by an exeat that every user can run."""
    caller = stage.caller(name)
    chosen = [word for each in classes for word in ("--class", each)]
    done = subprocess.run(
        [*before, *stage.command(caller, *stage.exeat("doctor", "--attack", "--json", "--jail", "vm", *chosen))],
        env=stage.environment(caller) | guest.environment,
        cwd=caller.home,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    assert done.stdout.startswith("{"), done.stderr
    rows: list[dict[str, Any]] = json.loads(done.stdout)["rows"]
    return rows


def _check(rows: list[dict[str, Any]], classes: tuple[str, ...], caller: str, but: str = "") -> None:
    assert {row["id"] for row in rows} == {probe.id for name in classes for probe in GROUPS[name].probes}
    inside = inside_guest()
    for row in rows:
        probe = next(each for each in GROUPS[row["class"]].probes if each.id == row["id"])
        assert (row["seen"] == "left out") == bool(inside.why_not(probe)), row
        if row["id"] != but:
            judge(row, caller)
    tried = [row for row in rows if row["seen"] != "left out"]
    assert sum(row["seen"] in {"stopped", "works"} for row in tried) > 0.8 * len(tried)


@pytest.mark.threat("T-G1", "T-G2", "T-G3", "T-G5", "T-G6")
def test_root_in_a_guest_does_not_get_out(guest: Guest, stage: Stage) -> None:
    """Of someone without rights. So root there is no one outside."""
    _check(_attack(stage, guest, "user", _ITS_OWN), _ITS_OWN, "user")


@AS_ROOT
@pytest.mark.timeout(_LIMIT_S + 10)
@pytest.mark.every_vm
def test_nothing_of_the_corpus_gets_out_of_roots_guest(guest: Guest, stage: Stage) -> None:
    """Of root, who without a jail can do all of it."""
    classes = tuple(name for name, group in GROUPS.items() if group.only in ("", "vm"))
    rows = _attack(stage, guest, "root", classes)
    _check(rows, classes, "root")
    assert [row["id"] for row in rows if row["seen"] == "no control" and row["id"].startswith("G")] == []


@AS_ROOT
@pytest.mark.threat("T-G3")
def test_root_in_a_guest_does_not_get_out_by_9p(guest_9p: Guest, stage: Stage) -> None:
    """QEMU itself serves the files then."""
    need("unshare", "mount")
    classes = ("inside", "guest-files")
    rows = _attack(stage, guest_9p, "user", classes, ["unshare", "-m", "sh", "-c", _NO_VIRTIOFSD, "sh"])
    _check(rows, classes, "user", but="W2.own-unix")  # 9p opens a socket when it is bound, as if it were a file
