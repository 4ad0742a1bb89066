from __future__ import annotations

from typing import Any

import pytest

from exeat.errors import JailError
from exeat.jail.container.images import hold_volumes
from exeat.jail.container.options import Mount

_MOUNTS = (Mount("/home/me/project", "/work"), Mount("/own/passwd", "/etc/passwd", True))


def _host() -> dict[str, Any]:
    return {"Tmpfs": {"/tmp": "size=1", "/home/sandbox": "size=1,mode=0700"}}


def test_volumes_of_the_image_are_in_memory() -> None:
    host = _host()
    hold_volumes(host, ["/data/", "//etc", "/tmp", "/home/sandbox", "/work"], _MOUNTS)
    assert host["Tmpfs"] == _host()["Tmpfs"] | {"/data": "size=1", "/etc": "size=1"}


@pytest.mark.threat("T-E17")
@pytest.mark.parametrize("path", ["/work/.claude", "/work/a/../.git/hooks/", "/etc/passwd/x"])
def test_no_image_makes_folders_in_those_of_the_machine(path: str) -> None:
    """An engine makes what is missing to mount a volume on, as root, in the project itself."""
    with pytest.raises(JailError, match="in a folder of this machine"):
        hold_volumes(_host(), [path], _MOUNTS)
