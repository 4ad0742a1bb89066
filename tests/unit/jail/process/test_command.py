"""Where a command is looked for, and what is said if it cannot be started."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from exeat.jail.process.command import become, places_of


def test_the_path_is_that_of_the_command() -> None:
    assert places_of("x", {"PATH": "/a:/b"}) == ["/a/x", "/b/x"]
    assert places_of("x", {}) == [f"{folder}/x" for folder in os.defpath.split(":") if folder]
    assert places_of("x", {"PATH": ""}) == ["x"]
    for name in ("/bin/x", "./x", "y/x"):
        assert places_of(name, {"PATH": "/a:/b"}) == [name]


def _failure(name: str, path: str) -> int | None:
    environ = {"PATH": path}
    with pytest.raises(OSError) as caught:  # noqa: PT011 - which one is looked at by its number
        become(places_of(name, environ), [name], environ)
    return caught.value.errno


def test_what_is_there_but_cannot_be_run_is_told_apart_from_what_is_not(tmp_path: Path) -> None:
    folder = tmp_path / "with"
    folder.mkdir()
    (folder / "plain").write_text("text")
    (folder / "plain").chmod(0o644)
    path = f"/nonexistent:{folder}/plain:{folder}:/none"
    assert _failure("plain", path) == errno.EACCES
    assert _failure(str(folder / "plain"), path) == errno.EACCES
    assert _failure("other", path) == errno.ENOENT
    assert _failure("./other", path) == errno.ENOENT


def test_a_folder_that_may_not_be_entered_says_nothing_about_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may enter all, so the kernel's answer is given here; a path that the user wrote is answered as it is."""

    def refuse(path: str, argv: list[str], environ: dict[str, str]) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr("os.execve", refuse)
    assert _failure("other", f"{tmp_path}/closed:{tmp_path}") == errno.ENOENT
    assert _failure("other", f"{tmp_path}/closed") == errno.ENOENT
    assert _failure(f"{tmp_path}/closed/other", "/a:/b") == errno.EACCES
