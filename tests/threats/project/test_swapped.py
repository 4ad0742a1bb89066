"""Two runs share a folder, and the command of one changes the way to what the other shares, while that one starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.runs.running import AS_ROOT, TIMEOUT_S

pytestmark = pytest.mark.threat("T-M10")

# There is no link on the way when the path is chosen, nor when the view is made: only in between.
_ENTER = """
import os, sys
from exeat.jail.files import view
from exeat.jail.libc import MS_PRIVATE, MS_REC, mount
from exeat.jail.files.view import Layers, NoViewError, enter_view
mount(None, "/", None, MS_REC | MS_PRIVATE)
def swap_back(*arguments, make=view._make_stage, **rest):
    for link, folder in [sys.argv[2:]] if sys.argv[2:] else ():
        os.unlink(link)
        os.rename(folder, link)
    return make(*arguments, **rest)
view._make_stage = swap_back
try:
    enter_view(Layers([sys.argv[1]], limit=1 << 20), own_users=False)
except NoViewError as error:
    print("refused:", error.strerror)
else:
    with open(f"{sys.argv[1]}/new", "w") as file:
        file.write("planted")
    print("entered")
"""


def _enter(path: Path, *swapped: Path) -> str:
    argv = ["unshare", "--mount", sys.executable, "-c", _ENTER, str(path), *map(str, swapped)]
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=TIMEOUT_S).stdout


@AS_ROOT
def test_a_link_on_the_way_to_a_shared_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere" / "bin").mkdir(parents=True)
    (tmp_path / "project" / "aside" / "bin").mkdir(parents=True)
    link = tmp_path / "project" / "sub"
    link.symlink_to(tmp_path / "elsewhere")
    assert _enter(link / "bin", link, tmp_path / "project" / "aside").startswith("refused")
    assert not (tmp_path / "elsewhere" / "bin" / "new").exists()


@AS_ROOT
@pytest.mark.parametrize("kind", ["folder", "deep folder"])
def test_a_way_without_links(tmp_path: Path, kind: str) -> None:
    """The control."""
    shared = tmp_path / "project" / "sub" / "bin" / ("x/y" if kind == "deep folder" else "")
    shared.mkdir(parents=True)
    assert _enter(shared) == "entered\n"
    assert (shared / "new").read_text() == "planted"
