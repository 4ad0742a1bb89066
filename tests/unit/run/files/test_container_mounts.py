"""Which mounts an engine is asked for: what is held, what is covered, and every folder on the way."""

from __future__ import annotations

from pathlib import Path

import pytest

from exeat.errors import ConfigError
from exeat.jail.container.options import Mount
from exeat.jail.files.holding import Holdings, Place
from exeat.run.files.container_mounts import ContainerMounts, Covers, make_covers


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    for name in (".git/hooks/pre-commit", ".git/config", "a/b/key", "a/b/other", "keys/kept", "keys/secret", "in/x/y"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    (folder / "link").symlink_to("a")
    return folder


@pytest.fixture
def covers(tmp_path: Path) -> Covers:
    (tmp_path / "own").mkdir()
    return make_covers(str(tmp_path / "own"))


def _made(mounts: ContainerMounts, project: Path) -> dict[str, tuple[str, str]]:
    """Below the project's path, without what is ours. `=`: on itself."""
    found = {}
    for mount in mounts.made:
        if mount.target.startswith(f"{project}/"):
            name = mount.target.removeprefix(f"{project}/")
            what = "=" if mount.source == mount.target else Path(mount.source).name
            found[name] = what, "ro" if mount.read_only else "rw"
    return found


def _places(project: Path, *names: str) -> tuple[Place, ...]:
    return tuple(Place(str(project), f"{project}/{name}") for name in names)


def test_what_is_held_and_the_way_to_it(project: Path, covers: Covers) -> None:
    holdings = Holdings(
        read_only=_places(project, ".git/config", ".git/hooks", ".git/hooks/pre-commit", "link"),
        hidden=(*_places(project, "a/b/key"), Place(str(project), f"{project}/keys", ("kept", "missing"))),
        pinned=_places(project, "in/x"),
    )
    share = Mount(str(project), str(project))
    mounts = ContainerMounts([share], holdings, [f"{project}/a/sock"], covers)
    assert _made(mounts, project) == {
        ".git": ("=", "rw"),
        ".git/config": ("=", "ro"),
        ".git/hooks": ("=", "ro"),
        "a": ("=", "rw"),
        "a/b": ("=", "rw"),
        "a/b/key": ("blank", "ro"),
        "a/sock": ("blank", "ro"),
        "keys": ("empty-1", "ro"),
        "keys/kept": ("=", "ro"),
        "in": ("=", "rw"),
        "in/x": ("=", "rw"),
    }
    assert mounts.links == list(_places(project, "link"))
    depths = [mount.target.count("/") for mount in mounts.made]
    assert depths == sorted(depths)


def test_what_is_read_only_has_nothing_writable_in_it(project: Path, covers: Covers) -> None:
    """But for what may be written, and again in that."""
    holdings = Holdings(
        read_only=_places(project, ".git", ".git/config", "in", "in/x/y"),
        still_writable=_places(project, "in/x"),
        hidden=_places(project, "a"),
        pinned=_places(project, ".git/hooks", "a/b"),
    )
    mounts = ContainerMounts([Mount(str(project), str(project))], holdings, [f"{project}/a/sock"], covers)
    assert _made(mounts, project) == {
        ".git": ("=", "ro"),
        "in": ("=", "ro"),
        "in/x": ("=", "rw"),
        "in/x/y": ("=", "ro"),
        "a": ("empty", "ro"),
    }


def test_other_paths_in_the_container(project: Path, covers: Covers) -> None:
    """Once for every share that it is in. One that is read-only needs no more than its covers."""
    shares = [Mount(str(project), str(project)), Mount(f"{project}/a", "/mnt/a"), Mount(str(project), "/mnt/ro", True)]
    holdings = Holdings(hidden=_places(project, "a/b/key"))
    mounts = ContainerMounts(shares, holdings, [], covers)
    targets = {mount.target: Path(mount.source).name for mount in mounts.made if not mount.target.startswith("/run/")}
    assert targets == {
        str(project): "project",
        f"{project}/a": "a",
        f"{project}/a/b": "b",
        f"{project}/a/b/key": "blank",
        "/mnt/a": "a",
        "/mnt/a/b": "b",
        "/mnt/a/b/key": "blank",
        "/mnt/ro": "project",
        "/mnt/ro/a/b/key": "blank",
    }
    assert mounts.inside == [
        {str(project): str(project), f"{project}/a": "/mnt/a"},
        {str(project): "/mnt/ro", f"{project}/a": "/mnt/a"},
    ]


def test_one_in_another(project: Path, covers: Covers) -> None:
    """What is read-only there has nothing writable in it, and cannot be moved away."""
    shares = [Mount(str(project), str(project)), Mount(f"{project}/in/x", f"{project}/in/x", True)]
    holdings = Holdings(read_only=_places(project, "in/x/y"), pinned=_places(project, "in/x"))
    mounts = ContainerMounts(shares, holdings, [], covers)
    assert _made(mounts, project) == {"in": ("=", "rw"), "in/x": ("=", "ro")}


def test_two_things_at_one_place(project: Path, covers: Covers) -> None:
    with pytest.raises(ConfigError, match="two mounts cannot have the same target"):
        ContainerMounts([Mount("/a", "/mnt"), Mount("/b", "/mnt")], Holdings(), [], covers)
