"""The options of `exeat run --container`."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING

from exeat.errors import ConfigError

if TYPE_CHECKING:
    from exeat.jail.container.options import ContainerOptions

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_LEAST_MEMORY = 16 << 20


def add_container_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("container", "run the command in a container: Docker or Podman")
    group.add_argument(
        "--container",
        metavar="IMAGE",
        nargs="?",
        const="",
        help="of this image, or of the one that EXEAT_IMAGE names, or of a slim Python",
    )
    group.add_argument("--engine", choices=("docker", "podman"), help="default: the first that is there; EXEAT_ENGINE")
    group.add_argument(
        "--mount",
        metavar="SRC:DST[:ro]",
        action="append",
        default=[],
        help="show a file or folder of this machine there",
    )
    group.add_argument("--memory", metavar="SIZE", help="at most so much, such as 512m (default: 4g)")
    group.add_argument("--cpus", metavar="N", type=float, help="at most so many, such as 1.5 (default: all)")
    group.add_argument("--pids", metavar="N", type=int, help="at most so many processes (default: 1024)")
    group.add_argument("--user", metavar="USER", help="run as this user of the image (default: your uid)")


def container_options(options: argparse.Namespace) -> ContainerOptions | None:
    """Raises ConfigError, also for options that mean nothing without a container."""
    named = {
        f"--{name}": value
        for name in ("engine", "mount", "memory", "cpus", "pids", "user")
        if (value := getattr(options, name)) not in (None, [])
    }
    if options.container is None and options.jail != "container":
        if named:
            raise ConfigError("it is about a container", where=next(iter(named)), expected="--container as well")
        return None
    from exeat.files.named_mounts import parse_mount  # for containers
    from exeat.jail.container.options import MEMORY, PIDS, ContainerOptions

    if options.cpus is not None and not 0 < options.cpus <= 4096:
        raise ConfigError("not a number of CPUs", where=f"--cpus {options.cpus:g}", expected="more than 0, such as 1.5")
    if options.pids is not None and options.pids < 2:
        raise ConfigError("not enough for a command", where=f"--pids {options.pids}", expected="at least 2")
    return ContainerOptions(
        options.container or "",
        options.engine or "",
        tuple(map(parse_mount, options.mount)),
        _parse_size(options.memory) if options.memory is not None else MEMORY,
        options.cpus or 0.0,
        options.pids or PIDS,
        options.user or "",
    )


def _parse_size(text: str) -> int:
    found = re.fullmatch(r"([0-9]+)([kmg]?)b?", text.lower())
    size = int(found[1]) * _UNITS[found[2]] if found else 0
    if size < _LEAST_MEMORY:
        raise ConfigError("not a size, or too small", where=f"--memory {text}", expected="such as 512m or 2g")
    return size
