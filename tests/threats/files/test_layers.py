"""What a command leaves in its layer costs those who look at it neither their memory nor their time, and locks no one
out of it (M3)."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from exeat.errors import ExeatError
from exeat.files.layers import on_disk, saving
from exeat.files.layers.comparing import Change, RealMachine
from exeat.files.layers.saving import save_layer
from exeat.files.layers.showing import rows_of
from exeat.files.layers.upper import count_changes
from exeat.jail.files import mounts
from exeat.sandbox import run_folder
from exeat.sandbox.folder import open_sandbox
from tests.support.fixtures.layers import Machine

pytestmark = pytest.mark.threat("T-M3")

_LONG = "d" * 250


def _deep(top: Path, folders: int) -> int:
    """Many folders at the end of a way that is as long as one can be."""
    upper = here = os.open(top, os.O_RDONLY)
    for _ in range(13):
        os.mkdir(_LONG, dir_fd=here)
        here = os.open(_LONG, os.O_RDONLY, dir_fd=here)
    for number in range(folders):
        os.mkdir(f"{number}", dir_fd=here)
    return upper


def test_folders_are_walked_in_the_memory_of_their_names(tmp_path: Path) -> None:
    upper = _deep(tmp_path, 3000)
    tracemalloc.start()
    try:
        changes = count_changes([("/x", upper)], 10_000)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert changes.is_complete
    assert peak < 2_000_000, "each of them has a path of 3,300 bytes"


def test_folders_count_as_something_to_look_at(tmp_path: Path) -> None:
    """Else a command that makes millions of them, and nothing else, has its caller wait for minutes."""
    for number in range(50):
        (tmp_path / f"{number}/in").mkdir(parents=True)
    upper = os.open(tmp_path, os.O_RDONLY)
    assert not count_changes([("/x", upper)], 50).is_complete
    assert count_changes([("/x", upper)], 1000).is_complete


def test_paths_that_are_too_much_for_a_list_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXEAT_HOME", str(tmp_path / "state"))
    (tmp_path / "upper").mkdir()
    upper = _deep(tmp_path / "upper", 40)
    with open_sandbox("box", create=True) as box:
        monkeypatch.setattr(saving, "MAX_PATH_BYTES_KEPT", 100_000)
        with pytest.raises(ExeatError, match="paths"):
            save_layer(box, [("/x", upper)], 1 << 30)
        monkeypatch.setattr(saving, "MAX_PATH_BYTES_KEPT", 1_000_000)
        assert save_layer(box, [("/x", upper)], 1 << 30).number == 1


class _Counted(list[Change]):
    """Counts what is copied out of it."""

    copied = 0

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            self.copied += len(range(*key.indices(len(self))))
        return super().__getitem__(key)


@pytest.mark.parametrize("every", [True, False])
def test_many_new_folders_are_listed_without_copying_the_list_for_each(every: bool) -> None:
    changes = _Counted(Change(f"/x/{number:04d}", "added", "folder", None, None) for number in range(1000))
    with RealMachine() as real:
        rows = rows_of(real, changes, every=every)
    assert len(rows) == 1000
    assert changes.copied <= 2000


def test_a_folder_that_is_closed_outside_locks_nobody_out_of_the_list(machine: Machine) -> None:
    """The command opens it in its layer. What is in the real one cannot be looked at, and that is no reason to fail."""
    machine.do("mkdir -m 000 closed; mkdir half; mkdir half/in; chmod 400 half")
    assert machine.run("chmod 700 closed; echo 1 > closed/new; chmod 700 half; rm -r half")["status"] == 0
    done = machine.files("diff")
    assert (done.status, "closed/new" in done.stdout) == (0, True), done
    assert machine.files("apply", "closed", "--yes").status in (0, 1)  # root may
    assert machine.files("discard", "--yes").status == 0
    machine.do("chmod 700 closed half")


def test_a_layer_on_disk_that_is_too_deep_to_be_measured_is_full(tmp_path: Path) -> None:
    top = os.open(tmp_path, os.O_RDONLY)
    os.mkdir("upper", dir_fd=top)
    assert not on_disk._takes_more(top, "upper", 1 << 30)
    here = os.open("upper", os.O_RDONLY, dir_fd=top)
    for _ in range(3000):
        os.mkdir("d", dir_fd=here)
        before, here = here, os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(before)
    os.close(here)
    assert on_disk._takes_more(top, "upper", 1 << 30)
    run_folder._remove(top, "upper")


def test_folders_in_a_layer_on_disk_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_disk, "_MOST_COUNTED", 10)
    for number in range(20):
        (tmp_path / f"upper/{number}").mkdir(parents=True)
    assert on_disk._takes_more(os.open(tmp_path, os.O_RDONLY), "upper", 1 << 30)


def test_what_is_no_file_any_more_is_not_replaced_by_one(tmp_path: Path) -> None:
    """Where /etc/resolv.conf is a link, root's command can make it a folder, which kept the next run from starting."""
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("link", "missing", "."):
        mounts._replace(str(tmp_path / name), "content")
