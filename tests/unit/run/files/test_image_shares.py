"""What of the machine is in a guest that has an image's files: as for a container."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from exeat.errors import ConfigError
from exeat.file_policy import FileSettings
from exeat.jail.container.options import Mount
from exeat.jail.vm.options import VmOptions
from exeat.run.files.seen_files import SeenFiles, see_files
from exeat.run.settings import Preparations, RunSettings, make_plan


@pytest.fixture
def me(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with a key, a project to be in, and folders to share."""
    home = tmp_path / "me"
    for name in ("project", "data", "docs", ".ssh"):
        (home / name).mkdir(parents=True)
    (home / ".ssh" / "id_rsa").touch()
    (tmp_path / "state").mkdir()
    (tmp_path / "disk.raw").write_bytes(bytes(510) + b"\x55\xaa" + bytes(512))
    monkeypatch.setenv("EXEAT_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(home / "project")
    return home


def see(*mounts: Mount, files: FileSettings | None = None, has_image: bool = True) -> SeenFiles:
    image = str(Path(os.environ["EXEAT_HOME"]).parent / "disk.raw") if has_image else ""
    settings = RunSettings(
        ["true"], jail="vm", vm=VmOptions(image=image, mounts=mounts), files=(files or FileSettings(),)
    )
    seen = see_files(make_plan(settings, Preparations()))
    seen.close()
    return seen


def test_the_project_and_what_is_named(me: Path) -> None:
    seen = see(
        Mount("~/data", "/data"),
        Mount("~/docs", "/docs", True),
        files=FileSettings(read_only=("/opt",)),
    )
    assert seen.mounts == (
        Mount(str(me / "project"), str(me / "project")),
        Mount("/opt", "/opt", True),
        Mount(str(me / "data"), "/data"),
        Mount(str(me / "docs"), "/docs", True),
    )
    # What can be written there is written for real, and the rest goes to no file of the machine.
    assert seen.view.shared == sorted([str(me / "data"), str(me / "project")])


def test_without_an_image_there_is_nothing_to_mount(me: Path) -> None:
    assert see(has_image=False).mounts == ()


def test_a_home_is_not_shared(me: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(me)
    assert see().mounts == ()
    assert "the guest does not have it; to share it: --write ." in capsys.readouterr().err
    assert see(files=FileSettings(write=(".",))).mounts == (Mount(str(me), str(me)),)


@pytest.mark.threat("T-V21")
@pytest.mark.parametrize(
    ("mount", "said"),
    [
        (Mount("~/.ssh/id_rsa", "/key"), "is hidden from the command"),
        (Mount("{state}", "/state"), "is exeat's own"),
        (Mount("~/missing", "/x"), "does not exist"),
        (Mount("/run", "/x"), "is not in the jail that QEMU is in"),
        (Mount("/", "/x"), "is the machine itself"),
        (Mount("/proc/self", "/x"), "is the machine itself"),
    ],
)
def test_what_is_not_shared(mount: Mount, said: str, me: Path, tmp_path: Path) -> None:
    source = mount.source.replace("{state}", str(tmp_path / "state"))
    with pytest.raises(ConfigError) as refused:
        see(mount.replace(source=source))
    assert said in str(refused.value)


def test_a_key_is_shown_only_where_its_folder_is(me: Path) -> None:
    show = FileSettings(show=("~/.ssh",))
    with pytest.raises(ConfigError, match="is not in the guest"):
        see(files=show)
    assert Mount(str(me / ".ssh"), "/keys", True) in see(Mount("~/.ssh", "/keys", True), files=show).mounts
