"""What probes are told and what they answer survives the way through a process's arguments and output."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from exeat.attack import probe as probe_module
from exeat.attack.model import BOUNDARIES, JAILS, Answer, Evidence, Scene
from exeat.attack.probes import GROUPS, find


def test_a_scene_reads_back_as_it_was() -> None:
    """Places are tuples again, and nothing is lost."""
    scene = Scene(
        token="t",
        allowed=("allowed.test", 80),
        proxy=("127.0.0.1", 1),
        tcp={"v4": ("127.0.0.1", 2)},
        udp={"v6": ("::1", 3)},
        paths={"tmp": "/tmp/x"},
        abstract={"stream": "\0name"},
        victim={"pid": 4},
    )
    assert Scene.from_json(scene.to_json()) == scene
    assert Scene.from_json(Scene().to_json()) == Scene()


def test_an_answer_reads_back_as_it_was() -> None:
    answer = Answer("E1.tcp4", True, 'quotes " and\nlines', secret="s")
    assert Answer.from_json(answer.to_json()) == answer


def test_ids_are_unique_and_cite_a_row() -> None:
    """An id is a threat of docs/threats.md without its T-, a dot, and a name."""
    ids = [probe.id for group in GROUPS.values() for probe in group.probes]
    assert len(ids) == len(set(ids))
    assert all(id_[0] in "ABCDEGLMW" and id_.split(".")[0][1:].isdigit() for id_ in ids)
    assert all(find(id_).id == id_ for id_ in ids)


def test_claims_name_known_jails() -> None:
    """The env jail claims only what its gateway holds, and never what a network boundary is for."""
    for group in GROUPS.values():
        for probe in group.probes:
            assert probe.stops <= set(JAILS)
            if group.name in {"tcp", "ipv6", "udp", "raw", "unix", "namespaces", "processes"}:
                assert "env" not in probe.stops
                assert probe.stops in {BOUNDARIES, frozenset()}


def test_what_must_work_is_not_only_broken_or_stopped() -> None:
    """Every boundary has something that must work in it, or stopping everything would score full marks."""
    for jail in BOUNDARIES:
        assert any(p.evidence is Evidence.WORKS and jail in p.stops for p in GROUPS["inside"].probes)


def test_the_probe_process_needs_no_installation(tmp_path: Path) -> None:
    """It is run by its path with -I, and answers one line for each probe, whatever a probe does."""
    scene = Scene(outside=False, folder=str(tmp_path), udp={"v4": ("127.0.0.1", 9)})
    done = subprocess.run(
        [
            sys.executable,
            "-I",
            probe_module.__file__,
            scene.to_json(),
            '{"E1.udp4":"a","E1.tcp22":"b","E7.environ":"c"}',
        ],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    answers = [Answer.from_json(line) for line in done.stdout.splitlines()]
    assert [(answer.id, answer.done, answer.absent) for answer in answers] == [
        ("E1.udp4", True, False),
        ("E1.tcp22", False, True),
        ("E7.environ", False, False),
    ]
    assert "KeyError" in answers[2].said
    assert [answer.crashed for answer in answers] == [False, False, True]
