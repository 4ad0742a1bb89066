"""The corpus in a container: the image's own Python runs it, exeat is mounted for it, and some probes are left out."""

from __future__ import annotations

import subprocess  # noqa: TID251 - the corpus is made of processes, and is no part of the data path
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from exeat.attack.model import Probe
from exeat.errors import ConfigError

_PACKAGE = Path(__file__).parents[1]
_THERE = "/opt/exeat-attack/exeat"  # in the container
_OLDEST = (3, 11)
_WHICH_PYTHON = "import sys; print(*sys.version_info[:2], sys.executable)"
_LOOK_S = 600.0  # the image may have to be pulled
_NOT_FOUND = 127

# Classes and probes that say nothing about a container, and why.
LEFT_OUT = {
    "nest": "--nest is about namespaces on the machine's own files; in a container all of them are refused",
}


@dataclass(frozen=True, slots=True)
class Inside:
    """How probes are run in a jail, where that is not as without one."""

    options: tuple[str, ...] = ()  # of `exeat run`
    python: str = ""
    probe: str = str(Path(__file__).with_name("probe.py"))
    left_out: tuple[tuple[str, str], ...] = ()
    guest: bool = False  # they have a kernel of their own
    together: bool = False  # starting is slow: classes that need nothing special share a run

    def why_not(self, probe: Probe) -> str:
        """Why a probe is not tried; "": it is."""
        reasons = dict(self.left_out)
        return reasons.get(probe.id) or reasons.get(probe.group, "")


def look_into(image: str | None, engine: str, exeat: Sequence[str]) -> Inside:
    """Ask an image for its Python, in a container as the probes will be in. Raises ConfigError."""
    named = ("--container", *([image] if image else []), *(["--engine", engine] if engine else []))
    mount = ("--mount", f"{_PACKAGE}:{_THERE}:ro")
    command = [*exeat, "run", *named, *mount, "--quiet", "--", "python3", "-I", "-c", _WHICH_PYTHON]
    done = subprocess.run(  # noqa: S603 - exeat itself
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=_LOOK_S, check=False
    )
    if done.returncode == _NOT_FOUND:
        raise ConfigError(
            "the image has no python3, and the probes are written in Python",
            where=f"--container {image}" if image else "--container",
            expected="an image with Python 3.11 or later, such as python:3.13-slim",
        )
    words = done.stdout.decode(errors="replace").split()
    if done.returncode or len(words) != 3:
        raise ConfigError("the container jail does not work here: see above", expected="exeat run --container -- true")
    if (int(words[0]), int(words[1])) < _OLDEST:
        raise ConfigError(f"the image has Python {words[0]}.{words[1]}", expected="Python 3.11 or later for the probes")
    return Inside((*named, *mount), words[2], f"{_THERE}/attack/probe.py", tuple(LEFT_OUT.items()))
