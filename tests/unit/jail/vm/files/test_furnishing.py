"""What a guest has of files, and what its environment is made of."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from exeat.errors import ConfigError
from exeat.jail.container.options import Mount
from exeat.jail.environment import Variables
from exeat.jail.jail import Spec
from exeat.jail.vm.files.furnishing import complete_environment, files_of_image, files_of_view
from exeat.jail.vm.machine import MOST_SHARES
from exeat.jail.vm.settings import FileEntry, MountEntry
from exeat.jail.vm.shares import Tree
from exeat.jail.vm.tree import MachineTree
from exeat.trust.unnamed_file import TrustFiles, file_in_memory


def _spec(*mounts: Mount, cwd: str = "/work", trust: TrustFiles | None = None) -> Spec:
    return Spec(["true"], cwd, Variables({}), mounts=mounts, trust=trust)


def test_the_view_as_it_is() -> None:
    found = files_of_view(_spec(), "9p")
    assert (found.root, found.trees, found.cwd, found.shares, found.home) == ("9p:root", (Tree(),), "/work", None, "")


def test_folders_in_an_image(tmp_path: Path) -> None:
    """One that is mounted in another comes behind it."""
    inner, outer = tmp_path / "inner", tmp_path / "outer"
    inner.mkdir()
    outer.mkdir()
    mounts = (Mount(str(inner), "/data/inner"), Mount(str(outer), "/data", read_only=True))
    found = files_of_image(_spec(*mounts), "virtiofs", is_root=False)
    assert found.root == "disk:"
    assert found.mounts == (
        MountEntry("virtiofs", "m0", "/data", read_only=True),
        MountEntry("virtiofs", "m1", "/data/inner"),
    )
    assert found.shares == {"m0": (str(outer), True), "m1": (str(inner), False)}
    assert [tree.path for tree in found.trees] == ["/guest/m0", "/guest/m1"]


def test_a_folder_in_one_that_is_shared_as_well(tmp_path: Path) -> None:
    """Whatever is held in the outer one while the guest runs is held in it. One that is read-only needs no more."""
    outer, inner = tmp_path / "outer", tmp_path / "outer/in/it"
    inner.mkdir(parents=True)
    mounts = (Mount(str(inner), "/a"), Mount(str(outer), "/b"), Mount(str(inner), "/c", read_only=True))
    found = files_of_image(_spec(*mounts), "virtiofs", is_root=False)
    assert [tree.path for tree in found.trees] == ["/guest/m1/in/it", "/guest/m1", "/guest/m2"]
    assert found.shares == {"m1": (str(outer), False), "m2": (str(inner), True)}
    tree = MachineTree({}, {}, (0, 0), (), found.shares)
    assert tree.paths_again([str(inner)]) == [{str(inner): "/run/exeat-server/guest/m1/in/it"}]


@pytest.mark.parametrize(("is_root", "home"), [(True, "/root"), (False, "/home/sandbox")])
def test_where_the_command_is(is_root: bool, home: str, tmp_path: Path) -> None:
    """In the working directory if the guest has it, else in its home."""
    here = str(tmp_path)
    there = files_of_image(_spec(Mount(here, here), cwd=f"{here}/below"), "9p", is_root=is_root)
    assert (there.cwd, there.home, there.hostname) == (f"{here}/below", home, "sandbox")
    assert files_of_image(_spec(Mount(here, "/mnt"), cwd=here), "9p", is_root=is_root).cwd == home


def test_what_cannot_be_shared(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(ConfigError, match="is a file, and a guest with an image shares folders"):
        files_of_image(_spec(Mount(str(file), "/file")), "9p", is_root=False)
    many = [Mount(str(tmp_path), f"/m{number}") for number in range(MOST_SHARES + 1)]
    with pytest.raises(ConfigError, match="folders for one guest"):
        files_of_image(_spec(*many), "9p", is_root=False)


def test_whom_to_trust() -> None:
    files = (file_in_memory(b"all roots"), file_in_memory(b"own"), file_in_memory(b""))
    trust = TrustFiles(*files, "hash")
    found = files_of_image(_spec(trust=trust), "9p", is_root=False)
    for each in files:
        os.close(each)
    assert found.ca == b"own"
    assert found.files == (
        FileEntry("/run/exeat/ca-bundle.pem", 0o444, b"all roots"),
        FileEntry("/run/exeat/ca.pem", 0o444, b"own"),
    )


def test_the_environment_of_an_image() -> None:
    given = {"HOME": "/elsewhere"}
    complete_environment(given, "vt100", "/root", has_terminal=True)
    assert given["HOME"] == "/elsewhere"
    assert given["TERM"] == "vt100"
    assert "/usr/bin" in given["PATH"].split(":")
    bare: dict[str, str] = {}
    complete_environment(bare, "vt100", "/root", has_terminal=False)
    assert bare.keys() == {"PATH", "HOME"}
