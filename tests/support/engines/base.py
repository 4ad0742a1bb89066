"""An engine as a test has it: where it is, who runs exeat with it, and a look at what is there."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.engines.image import IMAGE
from tests.support.engines.services import GROUP_UID, SOCKET_GID, rootless_uid
from tests.support.engines.talk import ask
from tests.support.runs.running import environment

SESSION = (os.environ.get("PYTEST_XDIST_TESTRUNUID") or f"{os.getpid():x}")[:8]  # the same for all workers


@dataclass(frozen=True, slots=True)
class Way:
    """One of the ways in which people have an engine."""

    name: str
    service: str  # of tests/support/engines/services.py
    uid: int | None = None  # who runs exeat; None is root
    gid: int | None = None  # a further group of theirs

    @property
    def kind(self) -> str:
        """What exeat calls the engine."""
        return self.service.partition("-")[0]


DOCKER_ROOT = Way("docker-root", "docker")
DOCKER_GROUP = Way("docker-group", "docker", GROUP_UID, SOCKET_GID)
PODMAN_ROOT = Way("podman-root", "podman")
PODMAN_ROOTLESS = Way("podman-rootless", "podman-rootless", rootless_uid(SESSION))
WAYS = (DOCKER_ROOT, DOCKER_GROUP, PODMAN_ROOT, PODMAN_ROOTLESS)


@dataclass(frozen=True, slots=True)
class Base:
    """A running engine that has the image of the tests."""

    way: Way
    socket: Path
    keeper: int  # the process whose network the engine has
    image: str = IMAGE

    @property
    def name(self) -> str:
        return self.way.name

    @property
    def kind(self) -> str:
        return self.way.kind

    @property
    def uid(self) -> int | None:
        return self.way.uid

    @property
    def variables(self) -> Mapping[str, str]:
        """What points exeat at this engine and at no other."""
        name = "DOCKER_HOST" if self.kind == "docker" else "CONTAINER_HOST"
        return {name: f"unix://{self.socket}"}

    @property
    def before(self) -> Sequence[str]:
        """What to put before a command so that it runs as who has this engine."""
        uid, gid = self.way.uid, self.way.gid
        if uid is None:
            return []
        groups = ["--clear-groups"] if gid is None else ["--groups", str(gid)]
        return ["setpriv", "--reuid", str(uid), "--regid", str(uid), *groups]

    @property
    def on_its_network(self) -> Sequence[str]:
        """What to put before a command that is to be a host on the engine's bridges, such as a server."""
        return ["nsenter", f"--net=/proc/{self.keeper}/ns/net"]

    def starting(self, **added: str) -> dict[str, Any]:
        """For `exeat` and `Running` of tests/support/runs/running.py: as whom, and with which variables."""
        return {"before": self.before, "env": environment(**self.variables, **added)}

    def give(self, *paths: Path) -> None:
        """Make these, and all that is in them, the property of who runs exeat."""
        for path in paths if self.uid is not None else ():
            for each in (path, *path.rglob("*")):
                os.chown(each, self.uid or 0, self.uid or 0, follow_symlinks=False)

    def ask(self, method: str, target: str, body: object = None) -> Any:
        """The engine's answer, without exeat: "GET", "/containers/json?all=1"."""
        return ask(self.socket, method, target, body)

    def containers(self, label: str = "exeat.kind") -> list[dict[str, Any]]:
        """All that have this label, or label=value, running or not."""
        return list(self.ask("GET", f'/containers/json?all=1&filters={{"label":["{label}"]}}'))
