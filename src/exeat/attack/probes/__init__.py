"""What is tried inside, one file per class of bypass. `GROUPS` is all of it, in the order of the scorecard."""

from __future__ import annotations

from exeat.attack.guest import card, machine
from exeat.attack.model import Group, Probe
from exeat.attack.probes import (
    control_plane,
    descriptors,
    direct,
    dns,
    families,
    files,
    files_keys,
    files_sockets,
    inside,
    kernel,
    namespaces,
    nest,
    processes,
    proxy,
    raw,
    terminal,
    unix_sockets,
)

# Files are one class in several modules: what is imported is added.
_OF_FILES = (files_keys, files_sockets)

GROUPS: dict[str, Group] = {
    group.name: group
    for group in (
        inside.GROUP,
        direct.TCP,
        direct.IPV6,
        direct.UDP,
        direct.TRANSPORTS,
        raw.GROUP,
        dns.GROUP,
        direct.ADDRESSES,
        proxy.GROUP,
        control_plane.GROUP,
        unix_sockets.GROUP,
        families.GROUP,
        descriptors.GROUP,
        files.GROUP,
        processes.GROUP,
        namespaces.GROUP,
        nest.GROUP,
        kernel.GROUP,
        terminal.GROUP,
        processes.OUTLIVE,
        card.GROUP,
        machine.MACHINE,
        machine.FILES,
    )
}


def find(id: str) -> Probe:  # noqa: A002 - it is the id
    """A probe by its id."""
    return next(probe for group in GROUPS.values() for probe in group.probes if probe.id == id)
