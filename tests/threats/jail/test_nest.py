"""Sandboxes inside: with `--nest` every probe is root in a user namespace of its own, and nothing gets out.

Without `--nest` there is no user namespace, so none of it even begins: test_probes.py.
"""

from __future__ import annotations

import pytest

from exeat.attack.harness import GRANTED_BY_NEST
from exeat.attack.model import Probe
from exeat.attack.probes import GROUPS
from tests.support.jails.stage import Stage, check

pytestmark = pytest.mark.threat("T-M5")

_ORDINARY = "user"  # not available to root


@pytest.mark.parametrize("probe", GROUPS["nest"].probes, ids=lambda probe: probe.id)
def test_with_nest(stage: Stage, probe: Probe) -> None:
    """What hides by structure stays hidden, and capabilities are over the program's own namespaces alone."""
    check(stage, probe, "netns", _ORDINARY, nest=True)


@pytest.mark.parametrize("group", [each.name for each in GROUPS.values() if each.name != "nest" and not each.only])
def test_the_corpus_with_nest(stage: Stage, group: str) -> None:
    """The jail's own network, processes, descriptors and files, attacked by root of a namespace inside."""
    rows = stage.rows(group, "netns", _ORDINARY, nest=True)
    assert [row for row in rows if row["seen"] in {"ESCAPED", "BROKEN"}] == []
    assert {row["id"] for row in rows} == {probe.id for probe in GROUPS[group].probes} - GRANTED_BY_NEST
    if not any(row["seen"] in {"stopped", "works"} for row in rows):
        assert group == "kernel", "no control at all"
        pytest.skip("no control: the kernel refuses all of it to an ordinary user")


def test_what_nest_grants_is_refused_without_it(stage: Stage) -> None:
    """Else the corpus would leave out something with --nest that nothing else looks at."""
    rows = {row["id"]: row["seen"] for row in stage.rows("namespaces", "netns", _ORDINARY)}
    assert {rows[probe] for probe in GRANTED_BY_NEST} == {"stopped"}
