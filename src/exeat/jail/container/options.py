"""A user's options for a container, on the start-up path of `exeat run`."""

from __future__ import annotations

import os
from typing import Any, Final

from exeat.values import Value

MEMORY: Final = 4 << 30
PIDS: Final = 1_024
HOME: Final = "/home/sandbox"
ROOT_HOME: Final = "/root"
HOST_NAME: Final = "sandbox"


class Mount(Value):
    """A file or folder of this machine, as the container sees it."""

    source: str
    target: str
    read_only: bool = False


def as_body(mount: Mount, propagation: str = "rprivate") -> dict[str, Any]:
    """As an engine wants it. What is mounted on the machine later does not turn up in the container."""
    return {
        "Type": "bind",
        "Source": mount.source,
        "Target": mount.target,
        "ReadOnly": mount.read_only,
        "BindOptions": {"Propagation": propagation},
    }


class ContainerOptions(Value):
    """`--container` and what belongs to it."""

    image: str = ""  # "": what EXEAT_IMAGE names, else a slim Python
    engine: str = ""
    mounts: tuple[Mount, ...] = ()
    memory: int = MEMORY
    cpus: float = 0.0  # 0: all of them
    pids: int = PIDS
    user: str = ""  # "": the caller

    @property
    def home(self) -> str:
        """Of its user, in the container."""
        return ROOT_HOME if (self.user or str(os.geteuid())).partition(":")[0] in ("0", "root") else HOME
