"""The corpus in a virtual machine, as root in the guest. Damage to the guest's own kernel is no way out."""

from __future__ import annotations

from exeat.attack.in_container import Inside
from exeat.attack.model import Evidence, Probe
from exeat.attack.probes import GROUPS

_ITS_OWN_KERNEL = "root in a guest may do this to the guest's own kernel; the machine's is not touched"
# Classes whose deeds are done to the kernel that the probe runs on.
_OF_THE_KERNEL = frozenset({"raw", "families", "processes", "namespaces", "kernel"})
_OTHERS = {
    "nest": "--nest is about namespaces on the machine's own kernel",
    "M3.nosuid": "root in a guest needs no set-user-ID program; what one is outside, G3.owner shows",
}


def _says_nothing(probe: Probe) -> bool:
    return probe.group in _OF_THE_KERNEL and probe.evidence is Evidence.DEED


def inside_guest() -> Inside:
    """How the corpus is run: by this Python, which the guest has from the machine, and in few guests."""
    deeds = [probe.id for group in GROUPS.values() for probe in group.probes if _says_nothing(probe)]
    left_out = {**dict.fromkeys(deeds, _ITS_OWN_KERNEL), **_OTHERS}
    return Inside(("--guest-root",), left_out=tuple(left_out.items()), guest=True, together=True)
