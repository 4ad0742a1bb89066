"""Runs all programs in one jail, each with a placeholder for a key, and keeps how each of them ended."""

from __future__ import annotations

import base64
import functools
import json
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from exeat.trust.places import trust_variables
from tests.clients.jail.scene import SOMEBODY
from tests.clients.secrets.clients import CLIENTS, HOSTS, Client, Program, Site
from tests.clients.secrets.servers import PROGRAMS, VALUE, Upstream, host_of
from tests.support.programs import Finished, bare_environment, run
from tests.support.runs.running import PYTHON, run_argv

TIMEOUT_S = 100
TRUST_VARIABLES = sorted(trust_variables("", ""))
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{16,}={0,2}")


@dataclass(frozen=True, slots=True)
class Mode:
    """What the programs find: proxy variables or none, and whom to trust by variables, by mounted files or by both."""

    name: str
    proxy: bool
    variables: bool = True
    mounts: bool = True
    uid: int | None = None

    def __str__(self) -> str:
        return self.name

    def suits(self, client: Client) -> bool:
        """Can the program work so at all? One that reads no proxy variable stays outside of what is no real jail."""
        if self.uid is not None and client.module:
            return False
        if not self.mounts:
            return client.reads_proxy and client.by_variables
        return self.variables or client.by_mounts

    def doors(self, client: Client) -> set[str]:
        """How it comes to the gateway."""
        return {"connect" if self.proxy and client.reads_proxy else "redirect"}


MODES = [
    Mode("proxy", proxy=True),
    Mode("no-proxy", proxy=False),
    Mode("proxy-mounts-only", proxy=True, variables=False),
    Mode("no-proxy-mounts-only", proxy=False, variables=False),
    Mode("proxy-variables-only", proxy=True, mounts=False),
]
if os.geteuid() == 0:  # someone without rights is tested as they are
    MODES += [
        Mode("somebody-proxy", proxy=True, uid=SOMEBODY),
        Mode("somebody-no-proxy-mounts-only", proxy=False, variables=False, uid=SOMEBODY),
    ]


@functools.cache
def is_here(client: Client) -> bool:
    """Is all of it installed?"""
    if not all(map(shutil.which, client.needs)) or (client.module and find_spec(client.module) is None):
        return False
    return not client.probe or run(client.probe, os.environ).status == 0


def leaks(text: str) -> bool:
    """Is the value in it, as it is or in what base64 may hide?"""
    return VALUE in text or any(_hides_value(found[0]) for found in _BASE64.finditer(text))


def _hides_value(word: str) -> bool:
    word = word.rstrip("=").translate(str.maketrans("-_", "+/"))
    return any(
        VALUE.encode() in base64.b64decode(part + "=" * (-len(part) % 4))
        for part in (word[start:] for start in range(4))
        if len(part) % 4 != 1
    )


@dataclass(frozen=True, slots=True)
class Ran:
    """How all programs of one run ended, and what they had for a key."""

    done: Finished
    key: str
    ended: Mapping[str, Finished]


class Ward:
    """`exeat run` with one secret, for one user, in a folder of theirs."""

    def __init__(self, folder: Path, uid: int | None, ca: Path | None, hosts: Sequence[str]) -> None:
        self.folder = folder / "work"  # not the home, nor around it: that is not shared with a run for real
        self.folder.mkdir()
        self.log = self.folder / "audit.jsonl"
        self.env = bare_environment(folder / "home")
        self.address = "127.0.0.1"  # of all hosts
        self._uid = uid
        self._ca = ca
        self._whole = folder
        secrets = self.folder / "secrets.json"
        secrets.write_text(json.dumps({"API_KEY": {"value": VALUE, "hosts": list(hosts), "shape": "sk-"}}))
        secrets.chmod(0o600)

    def run(self, argv: Sequence[str], *options: str, env: Mapping[str, str] | None = None) -> Finished:
        """Run one command to its end. All that is in the folder is the user's then."""
        if self._uid is not None:
            for each in self._whole.rglob("*"):
                os.chown(each, self._uid, self._uid, follow_symlinks=False)
        words = ["--secrets", str(self.folder / "secrets.json"), "--audit", str(self.log), *options]
        words += [] if self._ca is None else ["--upstream-ca", str(self._ca)]
        words += [word for host in HOSTS for word in ("--add-host", f"{host}:{self.address}")]
        whole = run_argv(words, argv, self._uid)
        return run(whole, {**self.env, **(env or {})}, cwd=self.folder, timeout_s=TIMEOUT_S)

    def run_all(
        self,
        programs: Mapping[str, Program],
        *options: str,
        start: Sequence[str],
        variables: bool = True,
        env: Mapping[str, str] | None = None,
    ) -> Ran:
        """Run programs in one jail, each in a folder by its name. `start` starts Python; trust `variables` are kept."""
        planned = [
            {"name": name, "argv": program.argv, "env": dict(program.env), "cwd": str(self.folder / name)}
            for name, program in programs.items()
        ]
        plan = self.folder / "plan.json"
        plan.write_text(json.dumps({"unset": [] if variables else TRUST_VARIABLES, "programs": planned}))
        done = self.run([*start, str(PROGRAMS / "run_all.py"), str(plan)], *options, env=env)
        assert done.status == 0, done
        key, *lines = map(json.loads, done.stdout.splitlines())
        ended = {line["name"]: Finished(line["status"], line["stdout"], line["stderr"]) for line in lines}
        return Ran(done, key, ended)

    def decisions(self) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [line for line in lines if line["event"] == "decision"]


@dataclass(frozen=True, slots=True)
class Report:
    """How a run of all programs went, by everybody who has seen it."""

    ran: Ran
    folder: Path
    decisions: Sequence[Mapping[str, Any]]
    shown: Sequence[tuple[str, str]]  # what the servers were told in confidence: by which program, and what

    def decisions_on(self, client: Client) -> list[Mapping[str, Any]]:
        """Those on connections and requests, not on names that were looked up."""
        host = host_of(client.name)
        return [line for line in self.decisions if line["host"] == host and line["protocol"] != "dns"]


def report_on(mode: Mode, folder: Path, upstream: Upstream, built: Mapping[str, Path]) -> Report:
    """Run all programs that this mode is for and that are here, in one jail."""
    hosts = [f"{host}:{port}" for host in HOSTS for port in upstream.ports]
    ward = Ward(folder, mode.uid, upstream.certificates.ca, hosts)
    python = sys.executable if mode.uid is None else PYTHON
    programs = {}
    for client in CLIENTS:
        if mode.suits(client) and is_here(client):
            own = ward.folder / client.name
            own.mkdir()
            programs[client.name] = client.command(Site(host_of(client.name), upstream.ports, own, python, built))
    options = ["--jail", "netns" if mode.mounts else "env"]
    options += [] if mode.proxy else ["--no-proxy-env"]
    upstream.forget()
    ran = ward.run_all(programs, *options, start=[python], variables=mode.variables)
    return Report(ran, ward.folder, ward.decisions(), upstream.shown())
