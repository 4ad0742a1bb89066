"""A command whose jail was made ahead is told what to become before all is ready for it. It does not begin by that."""

from __future__ import annotations

import os
import select
from pathlib import Path

import pytest

from exeat.jail.bodies.netns import open_jail
from exeat.jail.environment import Variables
from exeat.jail.files.mounts import View
from exeat.jail.files.view import Layers
from exeat.jail.jail import Spec
from tests.support.jails.forked import attempt

_SOON_S = 0.3


@pytest.mark.threat("T-P10")
@pytest.mark.parametrize("is_released", [True, False])
def test_a_command_that_was_told_begins_only_when_it_is_let_go(tmp_path: Path, *, is_released: bool) -> None:
    (tmp_path / "project").mkdir()

    def run() -> None:
        os.chdir(tmp_path / "project")
        jail = open_jail()
        ours, theirs = os.pipe()
        nothing = os.open(os.devnull, os.O_RDWR)
        spec = Spec(["true"], str(Path.cwd()), Variables({}), view=View(Layers((), limit=1 << 20)), is_late=True)
        jail.build(spec).sockets.close()
        try:
            jail.become(["echo", "on"], {"PATH": os.environ["PATH"]}, [nothing, theirs, nothing], 0o22)
            os.close(theirs)
            if is_released:
                jail.release()
                assert os.read(ours, 10) == b"on\n"
            else:
                assert select.select([ours], [], [], _SOON_S)[0] == []
        finally:
            jail.close()
        assert os.read(ours, 10) == b""

    assert attempt(run) == "ok"
