"""Keys by ways that need a machine of a certain kind, and by what a command leaves for the next one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from tests.support.gateways.scene import wait_until
from tests.support.programs import need
from tests.support.runs.owned import KEY, START, Owned, owned
from tests.support.runs.running import AS_ROOT, BY_USER

pytestmark = pytest.mark.threat("T-M2")


def _read(there: Owned, path: object) -> tuple[bool, bool]:
    """Outside and inside."""
    control, jailed = there.outside("cat", str(path)), there.inside("cat", str(path))
    assert jailed.status == 1, jailed
    return KEY in control.stdout, KEY in jailed.stdout


@AS_ROOT
@BY_USER
@pytest.mark.parametrize("part", ["", ".ssh", ".ssh/id_ed25519"])
def test_a_second_mount(uid: int | None, part: str) -> None:
    """Of the home, of the folder, of the file: in another place of the machine, or in the project."""
    need("unshare")
    with owned(uid) as plain:
        for second in (plain.home.parent / "second", plain.project / "second"):
            (second.touch if part.endswith("19") else second.mkdir)()
            there = replace(plain, mounts=f"mount --bind {plain.home}/{part} {second}")
            path = second / plain.key.relative_to(plain.home / part) if not part.endswith("19") else second
            assert _read(there, path) == (True, False)
            assert _read(there, there.key) == (True, False)


@AS_ROOT
@BY_USER
def test_something_mounted_in_the_home(uid: int | None) -> None:
    """Then the home cannot be one layer."""
    need("unshare")
    with owned(uid) as plain:
        (plain.home / "disk").mkdir()
        there = replace(plain, mounts=f"mount -t tmpfs other {plain.home}/disk")
        assert _read(there, there.key) == (True, False)
        changed = there.inside("sh", "-c", "echo changed >> ~/.bashrc; cat ~/.bashrc")
        assert changed.stdout == f"{START}changed\n", changed
        assert there.start.read_text() == START


@BY_USER
@pytest.mark.parametrize(
    "words",
    [
        "mkdir -p ~/.ssh; rm -rf ~/.ssh; mkdir ~/.ssh; touch ~/.ssh/mine",
        "rm -rf ~/.ssh; ln -s ../home/.ssh ~/.ssh",
        "rm -rf ~/.ssh; mkdir ~/new; mv ~/new ~/.ssh",
        "cd ~ && for each in * .[a-z]*; do rm -rf $each; done; mkdir -p ~/.ssh",
        "rm -rf ~/.ssh; mkdir ~/.ssh; for name in opaque redirect origin metacopy whiteout impure; do"
        " for at in user.overlay user.overlay.overlay trusted.overlay; do"
        " {} $at.$name; done; done",
    ],
    ids=["made again", "a link", "renamed", "all removed", "marked"],
)
def test_what_a_run_left_in_a_sandbox_uncovers_nothing_in_the_next(uid: int | None, words: str) -> None:
    """What is kept lies above what hides."""
    mark = 'python3 -c \'import os, sys; os.setxattr(os.path.expanduser("~/.ssh"), sys.argv[1], b"n")\' 2>/dev/null'
    kept = ["--name", "kept"]
    with owned(uid) as there:
        first = there.inside("sh", "-c", words.replace("{}", mark) + "; true", options=["--new", *kept])
        assert first.status == 0, first
        for _ in range(2):
            after = there.inside("sh", "-c", "cat ~/.ssh/id_ed25519; ls -a ~/.ssh; true", options=kept)
            assert after.status == 0, after
            assert KEY not in after.stdout
            assert "id_ed25519" not in after.stdout.split()
        assert there.key.read_text() == f"{KEY}\n"
        assert there.start.read_text() == START


@BY_USER
def test_a_key_that_is_replaced_meanwhile_stays_hidden(uid: int | None) -> None:
    """As programs renew them: under another name first, which is in a hidden folder, and then renamed."""
    with owned(uid) as there:
        words = (
            f"touch ready; while ! test -e {there.project}/go; do sleep 0.02; done;"
            " cat ~/.ssh/id_ed25519 ~/.ssh/new; ls -a ~/.ssh"
        )
        with _renewing(there):
            done = there.inside("sh", "-c", f"{words}; true")
        assert done.status == 0, done
        assert "renewed" not in done.stdout
        assert there.key.read_text() == "renewed"


@contextmanager
def _renewing(there: Owned) -> Iterator[None]:
    """Somebody outside renews the key when the command runs."""

    def renew() -> None:
        wait_until((there.project / "ready").exists, "the command to run")
        new = there.key.with_name("new")
        new.write_text("renewed")
        there.give(new)
        new.rename(there.key)
        (there.project / "go").touch()

    thread = threading.Thread(target=renew, daemon=True)
    thread.start()
    yield
    thread.join()
