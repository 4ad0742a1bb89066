"""How the escape tests are run: a copy of exeat that every user can read, callers, and scorecards kept per session.

A class of the corpus is attacked once per jail and caller; each probe is a test that looks at its row.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from exeat.attack.model import Probe
from exeat.attack.outside.belongings import SYSTEM
from exeat.attack.probes import GROUPS
from tests.support.programs import give_up, need

_SCRIPTS = [Path(__file__).with_name(name) for name in ("world.py", "soak.py", "killing.py")]
_PACKAGES = ("exeat", "uvloop", "httptools", "idna", "publicsuffixlist", "aiohappyeyeballs")
_ATTACK_S = 240

# Kernels are built with and without these, and machines have these files or not.
MAY_BE_ABSENT = frozenset(
    {
        *("E1.sctp", "E1.dccp", "E1.udplite", "E6.smc", "E6.vsock", "E6.vsock-open", "E6.vsock-high", "E2.i386"),
        *("E2.modprobe", "E2.uevent-helper", "E2.sysrq", "E2.binfmt", "E2.memory", "E2.disk", "E2.kmsg", "E2.console"),
        *("M5.new-sysfs", "M5.new-cgroup", "M5.beneath", "M5.handle"),
        *("E2.setuid", "E2.tun", "E7.keyring", "E10.tiocsti", "E10.tiocsti-high"),
    }
)
# What an ordinary user is refused without a jail too, so that there is no control for it.
NEEDS_ROOT = frozenset(
    {
        *("E2.mark", "E1.ping", "E1.ping-socket", "E2.raw-udp", "E2.frame", "E2.setns", "E2.setns-pidfd"),
        *("E2.setuid-call", "E2.core-pattern", "E2.handle", "E2.bpf", "E2.raw-open", "E2.tun", "E6.rare-families"),
        *("E6.unix-run", "E6.unix-cwd", "M5.new-proc", "M5.new-sysfs", "M5.new-cgroup"),
        *("G3.owner", "G5.icmp"),
    }
)

# The same for files. Folders of the system are root's, and not every machine has all of them.
_OF_SYSTEM = frozenset(f"M1.system-{key}" for key in SYSTEM)
MAY_BE_ABSENT |= _OF_SYSTEM | {"M2.handle", "L8.queue"}
NEEDS_ROOT |= _OF_SYSTEM | {
    "M2.handle",
    *(probe.id for probe in GROUPS["files"].probes if probe.id[:2] == "M3"),
}

# Every jail that is a boundary, with the callers that it can have.
JAILS_AND_CALLERS = (("netns", "root"), ("netns", "user"), ("nft", "root"))
# What the env jail claims is what its gateway refuses.
ALL_JAILS_AND_CALLERS = (*JAILS_AND_CALLERS, ("env", "root"), ("env", "user"))


@dataclass(frozen=True, slots=True)
class Installation:
    """exeat as another user would have it: a Python that everybody may run, and a folder that everybody may read."""

    python: str
    folder: Path


@dataclass(frozen=True, slots=True)
class Caller:
    """Who runs exeat."""

    name: str
    uid: int
    home: Path


@dataclass(frozen=True, slots=True)
class Stage:
    """Installation and callers, and what has been found so far."""

    installation: Installation
    homes: Path
    cards: dict[tuple[str, str, str, bool], dict[str, Any]] = field(default_factory=dict)

    def caller(self, name: str) -> Caller:
        """The caller of a test; the test is skipped, by name, if this process cannot be that caller."""
        if os.geteuid() != 0:
            if name == "root":
                pytest.skip("pytest does not run as root, so exeat cannot")
            return Caller(name, os.geteuid(), self._home(os.geteuid()))
        uid = 0 if name == "root" else _unused_uid()
        return Caller(name, uid, self._home(uid))

    def _home(self, uid: int) -> Path:
        home = self.homes / str(uid)
        if not home.exists():
            home.mkdir(mode=0o700)
            os.chown(home, uid, uid)
        return home

    def environment(self, caller: Caller) -> dict[str, str]:
        temporary = self.homes / f"t{caller.uid}"
        if not temporary.exists():
            temporary.mkdir()
            temporary.chmod(0o1777)
        return {
            "TMPDIR": str(temporary),
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(caller.home),
            "LANG": "C.UTF-8",
            "PYTHONPATH": str(self.installation.folder),
            "PYTHONDONTWRITEBYTECODE": "1",
            "WORLD_SECOND": str(self.homes / "second"),
        }

    def command(self, caller: Caller, *words: str) -> list[str]:
        """A command as the caller: in a world of its own if this process is root, as it is otherwise."""
        if os.geteuid() != 0:
            return list(words)
        need("ip")
        return [self.installation.python, "-I", str(self.installation.folder / "world.py"), str(caller.uid), *words]

    def run(self, caller: Caller, *words: str, timeout_s: float = _ATTACK_S) -> subprocess.CompletedProcess[str]:
        """Run a command as the caller, to the end."""
        return subprocess.run(
            self.command(caller, *words),
            env=self.environment(caller),
            cwd=caller.home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def script(
        self, caller: Caller, name: str, *words: str, timeout_s: float = _ATTACK_S
    ) -> subprocess.CompletedProcess[str]:
        """Run one of the scripts of the escape tests as the caller."""
        path = self.installation.folder / name
        return self.run(caller, self.installation.python, str(path), *words, timeout_s=timeout_s)

    def exeat(self, *words: str) -> list[str]:
        return [self.installation.python, "-m", "exeat", *words]

    def row(self, probe: str, jail: str, caller: str, *, nest: bool = False) -> dict[str, Any]:
        """One row of the scorecard of a probe's class."""
        group = next(group.name for group in GROUPS.values() if any(each.id == probe for each in group.probes))
        return next(row for row in self.rows(group, jail, caller, nest=nest) if row["id"] == probe)

    def rows(self, group: str, jail: str, caller: str, *, nest: bool = False) -> list[dict[str, Any]]:
        """The scorecard of a class."""
        key = (group, jail, caller, nest)
        if key not in self.cards:
            who = self.caller(caller)
            words = ("--json", "--jail", jail, "--class", group, *(["--nest"] if nest else []))
            done = self.run(who, *self.exeat("doctor", "--attack", *words))
            if done.returncode == 2 and "does not work here" in done.stderr:
                give_up(done.stderr.strip())
            assert done.stdout.startswith("{"), f"no scorecard: status {done.returncode}\n{done.stderr}"
            self.cards[key] = json.loads(done.stdout)
        rows: list[dict[str, Any]] = self.cards[key]["rows"]
        return rows


def cases() -> pytest.MarkDecorator:
    """Parameters (probe, jail, caller) for the corpus: every jail that claims to stop a probe, its callers."""
    return pytest.mark.parametrize(
        ("probe", "jail", "caller"),
        [
            pytest.param(
                *(probe, jail, caller),
                id=f"{probe.group}-{probe.id}-{jail}-{caller}",
                marks=pytest.mark.threat(probe.threat),
            )
            for group in GROUPS.values()
            for probe in group.probes
            for jail, caller in ALL_JAILS_AND_CALLERS
            if jail in probe.stops
        ],
    )


def check(stage: Stage, probe: Probe, jail: str, caller: str, *, nest: bool = False) -> None:
    """The probe gets out without a jail, and not with it. Where the machine has no such thing, skip by name."""
    why = judge(stage.row(probe.id, jail, caller, nest=nest), caller)
    if why:
        pytest.skip(why)


def judge(row: dict[str, Any], caller: str) -> str:
    """Fails for what got out or proves nothing. Why it says nothing here, if that is allowed; else nothing."""
    id_ = row["id"]
    assert row["seen"] != "ESCAPED", f"{row['attack']}: {row['evidence']} (it says: {row['said']})"
    assert row["seen"] != "BROKEN", f"{row['attack']}: {row['said']}"
    if row["seen"] == "no control":
        in_world = os.geteuid() == 0
        excused = (
            (row["lack"] == "absent" and id_ in MAY_BE_ABSENT)
            or (row["lack"] in {"absent", "refused"} and caller == "user" and id_ in NEEDS_ROOT | MAY_BE_ABSENT)
            or (row["lack"] == "refused" and id_ == "E2.disk")
            or (row["lack"] == "absent" and caller == "root" and id_ == "E2.setuid")
            or (not in_world and row["lack"] in {"absent", "refused"})
        )
        assert excused, f"no control, so this proves nothing: {row['control']} ({row['lack']})"
        return f"no control: {row['control']}"
    return ""


@functools.cache
def _unused_uid() -> int:
    """A user id that no one has."""
    taken = {entry.pw_uid for entry in pwd.getpwall()}
    return next(uid for uid in range(61_000, 61_100) if uid not in taken)


def find_python() -> str:
    """A Python of this minor version that every user may run."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    names = (f"/usr/bin/python{version}", f"/usr/local/bin/python{version}", sys.executable)
    usable = [name for name in names if _everybody_may_run(os.path.realpath(name))]
    if not usable:
        give_up(f"no Python {version} that another user may run: apt-get install python{version}")
    return usable[0]


def _everybody_may_run(path: str) -> bool:
    """Whether all folders on the way may be searched by others, and the file run. Alone, one's own rights will do."""
    if not os.access(path, os.X_OK):
        return False
    return os.geteuid() != 0 or all(os.stat(each).st_mode & 0o001 for each in [path, *map(str, Path(path).parents)])


def install(folder: Path) -> Installation:
    """Copy exeat and what it needs to a folder that every user can read."""
    python = find_python()
    for name in _PACKAGES:
        found = importlib.util.find_spec(name)
        if found is None or found.origin is None:
            give_up(f"{name}: not installed in this Python environment")
        source = Path(found.origin).parent
        shutil.copytree(source, folder / name)
        for metadata in source.parent.glob(f"{name}-*.dist-info"):
            shutil.copytree(metadata, folder / metadata.name)
    for script in _SCRIPTS:
        shutil.copy(script, folder / script.name)
    # Not everybody may write there, and without this every start would compile everything.
    subprocess.run([python, "-m", "compileall", "-q", folder], check=True)
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
    folder.chmod(0o755)
    return Installation(python, folder)


@contextlib.contextmanager
def open_stage() -> Iterator[Stage]:
    """exeat installed for everybody, under a folder that goes away. pytest's own folders are closed to other users."""
    root = Path(tempfile.mkdtemp(prefix="exeat-"))
    try:
        root.chmod(0o755)
        homes = root / "h"
        for folder in (root / "copy", homes, homes / "second"):
            folder.mkdir(mode=0o755)
        yield Stage(install(root / "copy"), homes)
    finally:
        shutil.rmtree(root)
