"""The options of `exeat run --container`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from exeat.cli.limits import parse_memory
from exeat.errors import ConfigError

if TYPE_CHECKING:
    from exeat.jail.container.options import ContainerOptions

_LEAST_MEMORY = 16 << 20
OWN = ("engine", "pids", "user")  # those that mean nothing for anything else


def add_container_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("container", "run the command in a container: Docker or Podman")
    group.add_argument(
        "--container",
        metavar="IMAGE",
        nargs="?",
        const="",
        help="use this image (default: EXEAT_IMAGE, or a slim Python)",
    )
    group.add_argument("--engine", choices=("docker", "podman"), help="default: EXEAT_ENGINE, or the first found")
    group.add_argument("--pids", metavar="N", type=int, help="process limit (default: 1024)")
    group.add_argument("--user", metavar="USER", help="run as this user of the image (default: your uid)")


def container_options(options: argparse.Namespace) -> ContainerOptions | None:
    """Raises ConfigError, also for options that mean nothing without a container."""
    if options.container is None and options.jail != "container":
        if named := next((name for name in OWN if getattr(options, name) is not None), ""):
            raise ConfigError("it applies only to a container", where=f"--{named}", expected="--container as well")
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
        parse_memory(options.memory, least=_LEAST_MEMORY) if options.memory is not None else MEMORY,
        options.cpus or 0.0,
        options.pids or PIDS,
        options.user or "",
    )
