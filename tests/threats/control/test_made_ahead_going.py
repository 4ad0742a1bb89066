"""A command whose jail was made ahead is told what to become before all is ready for it. It does not begin by that."""

from __future__ import annotations

import asyncio
import os
import select
from pathlib import Path

import pytest

from exeat.embed.sandbox_manager import SandboxManager
from exeat.jail.bodies.netns import open_jail
from exeat.jail.environment import Variables
from exeat.jail.files.mounts import View
from exeat.jail.files.view import Layers
from exeat.jail.jail import Spec
from tests.support.jails.forked import attempt
from tests.support.runs.made_ahead import run_all, standing

_SOON_S = 0.3


def jail_has_ended(news: int) -> bool:
    return bool(select.select([news], [], [], _SOON_S)[0])


@pytest.mark.threat("T-P10")
@pytest.mark.parametrize("told", ["command", "streams", "go"])
def test_a_command_that_was_told_begins_only_when_it_is_let_go(told: str, tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()

    def run() -> None:
        os.chdir(tmp_path / "project")
        jail = open_jail()
        ours, theirs = os.pipe()
        nothing = os.open(os.devnull, os.O_RDWR)
        spec = Spec(["true"], str(Path.cwd()), Variables({}), view=View(Layers((), limit=1 << 20)), is_late=True)
        jail.build(spec).sockets.close()
        try:
            jail.become(["echo", "on"], {"PATH": os.environ["PATH"]}, 0o22)
            if told != "command":
                jail.pass_streams([nothing, theirs, nothing])
            os.close(theirs)
            if told == "go":
                jail.release()
                assert os.read(ours, 10) == b"on\n"
            elif told == "streams":
                assert select.select([ours], [], [], _SOON_S)[0] == []
            else:
                assert not jail_has_ended(jail.news)
        finally:
            jail.close()
        assert os.read(ours, 10) == b""

    assert attempt(run) == "ok"


@pytest.mark.threat("T-P14")
def test_nothing_that_a_command_leaves_behind_goes_on_after_its_result(place: Path, used: list[bool]) -> None:
    """The result comes before the kernel has taken the jail apart. By then there is nothing left that could write.

    One is stopped, one ignores signals, one is a child of neither, and one makes others without end.
    """
    write = "trap '' TERM HUP INT; while :; do echo x >> late; done"
    script = f"""
setsid sh -c "{write}" & (sh -c "{write}" &) ; sh -c 'kill -STOP $$; {write}' &
setsid sh -c 'trap "" TERM; while :; do (echo x >> late) & done' &
while ! test -s late; do :; done
"""

    async def work(manager: SandboxManager) -> None:
        await standing(manager)
        assert (await manager.run(["bash", "-c", script], timeout_s=20)).returncode == 0
        size = (place / "late").stat().st_size
        await asyncio.sleep(_SOON_S)
        assert (place / "late").stat().st_size == size

    run_all(work)
    assert used == [True]
