"""Probes in a container: run by the image's Python, or not at all and with a reason."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from exeat.attack.harness import attack
from exeat.attack.in_container import LEFT_OUT, Inside, look_into
from exeat.attack.probes import GROUPS
from exeat.attack.scorecard import Seen
from exeat.cli.main import main
from exeat.errors import ConfigError


def _exeat(folder: Path, body: str) -> tuple[str, ...]:
    """A stand-in for exeat that gets the same arguments."""
    script = folder / "stand_in.py"
    script.write_text(f"import os, sys\ncommand = sys.argv[sys.argv.index('--') + 1:]\n{body}\n")
    return sys.executable, "-I", str(script)


def test_the_images_python_runs_the_probes_of_this_exeat(tmp_path: Path) -> None:
    body = "assert command[0] == 'python3'\nprint(3, 12, '/opt/python')\nopen('asked', 'w').write('\\n'.join(sys.argv))"
    (tmp_path / "asked").touch()
    stand_in = _exeat(tmp_path, body.replace("'asked'", repr(str(tmp_path / "asked"))))
    inside = look_into("image:1", "podman", stand_in)
    assert inside.python == "/opt/python"
    assert inside.probe.endswith("/exeat/attack/probe.py")
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked[asked.index("--container") + 1] == "image:1"
    assert asked[asked.index("--engine") + 1] == "podman"
    source, target, mode = asked[asked.index("--mount") + 1].split(":")
    assert (inside.probe.startswith(f"{target}/"), mode) == (True, "ro")
    assert Path(source, "attack", "probe.py").exists()
    assert set(asked) >= set(inside.options)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("sys.exit(127)", "the image has no python3"),
        ("print(3, 9, '/usr/bin/python3')", "the image has Python 3.9"),
        ("sys.exit('no engine')", "the container jail does not work here"),
        ("print('hello')", "the container jail does not work here"),
    ],
)
def test_an_image_that_cannot_run_them_is_refused(body: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        look_into("image:1", "", _exeat(tmp_path, body))


@pytest.mark.thorough
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the corpus is written for Linux")
def test_what_is_left_out_is_named_with_its_reason(tmp_path: Path) -> None:
    """And not tried: the stand-in would let it out."""
    inside = Inside(left_out=(("nest", "no such thing"), ("W2.threads", "not that one")))
    stand_in = _exeat(tmp_path, "os.execv(command[0], command)")
    card = attack("container", groups=["nest", "inside"], exeat=stand_in, inside=inside)
    seen = {row.id: (row.seen, row.said) for row in card.rows}
    assert {seen[probe.id] for probe in GROUPS["nest"].probes} == {(Seen.LEFT_OUT, "no such thing")}
    assert seen["W2.threads"] == (Seen.LEFT_OUT, "not that one")
    assert seen["W2.own-pair"][0] is Seen.WORKS
    assert "left out" in card.summary
    assert "no such thing" in card.to_text({})


def test_whatever_is_left_out_exists() -> None:
    ids = {probe.id for group in GROUPS.values() for probe in group.probes}
    assert set(LEFT_OUT) <= ids | set(GROUPS)


@pytest.mark.parametrize("option", [["--container", "image:1"], ["--engine", "docker"]])
def test_options_of_containers_need_one(option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--attack", *option]) == 2
    assert "--jail container" in capsys.readouterr().err
