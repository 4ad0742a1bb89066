"""Watches of files are counted for each user: a command must leave some to its user's other programs, and to exeat."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.runs.owned import owned
from tests.support.runs.running import AS_ROOT, NOBODY, python

pytestmark = pytest.mark.threat("T-I9")

_TAKE_ALL = """
import ctypes
libc = ctypes.CDLL(None)
count = 0
while libc.inotify_init() >= 0:
    count += 1
print(count)
"""


@AS_ROOT
def test_a_command_cannot_take_all_watches_of_its_user() -> None:
    most = int(Path("/proc/sys/fs/inotify/max_user_instances").read_text())
    with owned(NOBODY) as someone:
        done = someone.inside(*python(f"import resource\nresource.setrlimit(7, (4096, 4096))\n{_TAKE_ALL}"))
    assert done.status == 0, done.stderr
    assert 0 < int(done.stdout) <= most * 3 // 4
