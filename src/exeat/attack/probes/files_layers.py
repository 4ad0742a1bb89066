"""What the layers of the view must not be good for: device files, capabilities, marks of their own (M3)."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from exeat.attack.model import Evidence, Scene
from exeat.attack.probes.files import GROUP, home, own

_DEED = Evidence.DEED
_NULL = os.makedev(1, 3)
# Version 2, effective: CAP_NET_RAW and nothing else.
_CAPABILITY = (0x02000001).to_bytes(4, "little") + (1 << 13).to_bytes(4, "little") + bytes(12)


def _make_device(path: Path) -> str:
    os.mknod(path, 0o600 | stat.S_IFCHR, _NULL)
    os.close(os.open(path, os.O_WRONLY))
    return "made and opened"


@GROUP.probe("M3.device", "a device file in the home", evidence=_DEED)
def device(scene: Scene) -> str:
    return _make_device(home(scene, f"device-{scene.token}"))


@GROUP.probe("M3.device-project", "a device file in the project", evidence=_DEED)
def device_project(scene: Scene) -> str:
    return _make_device(own(scene, "device"))


@GROUP.probe("M3.capability", "a program in the project that has a capability (setcap)")
def capability(scene: Scene) -> str:
    """In a user namespace one can be set that counts in this namespace only. Outside it is seen which it is."""
    own(scene, "program").touch()
    os.setxattr(own(scene, "program"), "security.capability", _CAPABILITY)
    return "set"


@GROUP.probe("M3.trusted", "marks that only the layers' owner may set (trusted.*)", evidence=_DEED)
def trusted(scene: Scene) -> str:
    path = home(scene, f"trusted-{scene.token}")
    path.mkdir()
    os.setxattr(path, "trusted.overlay.opaque", b"y")
    return "set"


@GROUP.probe("M3.nosuid", "a program in the home that is someone else's by its mode (set-uid)", evidence=_DEED)
def nosuid(scene: Scene) -> str:
    if os.statvfs(scene.home).f_flag & os.ST_NOSUID:
        raise PermissionError("set-uid means nothing there")
    return "set-uid programs in the home count"
