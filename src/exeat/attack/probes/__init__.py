"""What is tried inside, one file per class of bypass. `GROUPS` is all of it, in the order of the scorecard."""

from __future__ import annotations

from exeat.attack.model import Group, Probe
from exeat.attack.probes import (
    addresses,
    control_plane,
    descriptors,
    dns,
    families,
    files,
    files_keys,
    files_layers,
    files_sockets,
    inside,
    ipv6,
    kernel,
    namespaces,
    nest,
    outlive,
    processes,
    proxy,
    raw,
    tcp,
    terminal,
    transports,
    udp,
    unix_sockets,
)

# Files are one class in several modules: what is imported is entered.
_OF_FILES = (files_keys, files_layers, files_sockets)

GROUPS: dict[str, Group] = {
    module.GROUP.name: module.GROUP
    for module in (
        inside,
        tcp,
        ipv6,
        udp,
        transports,
        raw,
        dns,
        addresses,
        proxy,
        control_plane,
        unix_sockets,
        families,
        descriptors,
        files,
        processes,
        namespaces,
        nest,
        kernel,
        terminal,
        outlive,
    )
}


def find(id: str) -> Probe:  # noqa: A002 - it is the id
    """A probe by its id."""
    return next(probe for group in GROUPS.values() for probe in group.probes if probe.id == id)
