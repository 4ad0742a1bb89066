"""Files of the caller's other groups: a guest is as good as any jail there, and no better."""

from __future__ import annotations

import os
import stat

import pytest

from tests.support.fixtures.vms import Guest
from tests.support.jails.stage import Stage
from tests.support.vms.workplace import workplace

_OF_CALLER = 100  # `Workplace` has it
_OF_OTHERS = 101
_DO = 'cat "$HOME/ours"; cat "$HOME/theirs"; echo made > shared/made && cat shared/made; ls closed; echo "end $?"'


@pytest.mark.threat("T-G11")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to groups")
def test_files_of_the_callers_other_groups_are_reached_and_those_of_others_are_not(guest: Guest, stage: Stage) -> None:
    """In the guest all of them have the same group, which the command is in: it is decided outside."""
    with workplace(stage, guest, "user") as place:
        for name, group in (("ours", _OF_CALLER), ("theirs", _OF_OTHERS)):
            path = place.write(name, f"{name}\n")
            os.chown(path, 0, group)
            path.chmod(0o640)
        for name, group in (("shared", _OF_CALLER), ("closed", _OF_OTHERS)):
            folder = place.project / name
            folder.mkdir()
            os.chown(folder, 0, group)
            folder.chmod(0o2770)
        done = place.run("--quiet", command=("sh", "-c", _DO))
        assert done.stdout.splitlines() == ["ours", "made", "end 2"], done
        assert done.stderr.count("Permission denied") == 2, done.stderr
        made = (place.project / "shared/made").stat()
        assert (made.st_uid, made.st_gid, stat.S_IMODE(made.st_mode)) == (place.uid, _OF_CALLER, 0o644)
