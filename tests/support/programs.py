"""Other people's programs as child processes: found or asked for by name, cut off from the machine's own settings."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import struct
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest


@dataclass(frozen=True, slots=True)
class Finished:
    """How a program ended, and all that it said."""

    status: int
    stdout: str
    stderr: str


def need(*programs: str) -> None:
    """Skip the test if a program is not installed. Where CI is set that is a failure: there, everything must run."""
    missing = [program for program in programs if shutil.which(program) is None]
    if missing:
        give_up(f"{', '.join(missing)}: not installed; {_how_to_install()}")


def find(program: str, *folders: str) -> str:
    """As `need`, for a server that may be in folders which an ordinary user's PATH does not have: its full path."""
    found = shutil.which(program, path=os.pathsep.join((os.environ["PATH"], *folders)))
    if found is None:
        give_up(f"{program}: not installed; {_how_to_install()}")
    return found


def _how_to_install() -> str:
    """The command that installs what is missing: the script has the one list of packages."""
    return f"sudo bash {Path(__file__).parents[2] / 'scripts' / 'system-packages'}"


def need_module(name: str) -> None:
    """As `need`, for a program that is run as `python -m`."""
    if importlib.util.find_spec(name) is None:
        give_up(f"{name}: not installed in this Python environment")


def give_up(sentence: str) -> NoReturn:
    """The test cannot be run here: skip it on a laptop, fail it in CI."""
    if os.environ.get("CI"):
        pytest.fail(sentence, pytrace=False)
    pytest.skip(sentence)


def bare_environment(home: Path) -> dict[str, str]:
    """An environment in which no program finds a proxy, a certificate or a configuration of this machine."""
    home.mkdir(exist_ok=True)
    return {"PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(home), "LANG": "C.UTF-8"}


def run(argv: Sequence[str], env: Mapping[str, str], *, cwd: Path | None = None, timeout_s: float = 90) -> Finished:
    """Run to the end, without input. On time-out the program and its children are killed and the test fails."""
    with subprocess.Popen(
        argv,
        env=dict(env),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A group of its own, so that helpers such as git-remote-https can be ended with it.
        start_new_session=True,
    ) as child:
        try:
            stdout, stderr = child.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            stdout, stderr = child.communicate()
            pytest.fail(f"{argv[0]} was still running after {timeout_s} s\n{stdout}\n{stderr}")
    return Finished(child.returncode, stdout, stderr)


def is_static(program: Path) -> bool:
    """Does the file name no loader (PT_INTERP)? Then there is no C library to be asked for addresses, or preloaded."""
    image = program.read_bytes()
    start, size, count = *struct.unpack_from("<Q", image, 32), *struct.unpack_from("<HH", image, 54)
    return all(struct.unpack_from("<I", image, start + size * each)[0] != 3 for each in range(count))
