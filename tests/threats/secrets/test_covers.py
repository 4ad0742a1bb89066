"""Hidden files and the process that keeps them hidden: replaced folders, links that lead elsewhere, and its own end."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.gateways.scene import wait_until
from tests.support.runs.running import AS_ROOT, BY_USER, Process, Running, children_of, folder_of, wait_gone

pytestmark = pytest.mark.threat("T-H8")

FIRST = "first-value-0123456789"
SECOND = "second-value-0123456789"
COMMON = "-value-0123456789"
OTHER = "nothing to hide"

# Looks at a file, does what it is told, and looks again when its input says so. The pause is for the cover, which may
# take a moment: what is to be shown here is what stays open.
LOOK = """
cat "$1"; echo looked; {inside}
echo done; read line; sleep 0.4; cat "$1" "$2"; cat "$3"; echo end
"""


class Place:
    """A file with a value, in a folder of its own, and a link that leads to it."""

    def __init__(self, folder: Path, uid: int | None) -> None:
        self.folder = folder
        self._uid = uid
        self.keys = folder / "keys"
        self.key = self.keys / "key"
        self.link = folder / "link"
        self.other = folder / "other"
        self.make_folder()
        self.write(self.key, FIRST)
        self.write(self.other, OTHER)
        self.link.symlink_to(self.key)

    def make_folder(self) -> None:
        self.keys.mkdir()
        self._own(self.keys)

    def write(self, path: Path, text: str) -> None:
        path.write_text(text)
        self._own(path)

    def _own(self, path: Path) -> None:
        if self._uid is not None:
            os.chown(path, self._uid, self._uid)


@contextmanager
def looking(place: Place, *, named: Path, seen: Path, inside: str = "", uid: int | None = None) -> Iterator[Running]:
    """A run with a secret in the file `named`; its command looks at `seen`. Its input is at hand."""
    config = place.folder / "secrets.json"
    place.write(config, json.dumps({"KEY": {"file": str(named), "hosts": ["api.test"]}}))
    script = LOOK.format(inside=inside)
    command = ["sh", "-c", script, "sh", str(seen), str(place.key), str(place.other)]
    run = Running(
        place.folder, "--secrets", str(config), command=command, uid=uid, stdin=subprocess.PIPE, cwd=place.folder
    )
    with run:
        run.wait_for("done")
        assert "looked" in run.out
        assert COMMON not in run.out
        assert run.process.stdin is not None
        with run.process.stdin:
            yield run


def finish(run: Running) -> str:
    assert run.process.stdin is not None
    run.process.stdin.write(b"\n")
    run.process.stdin.close()
    run.wait()
    return run.out


def replace_key(place: Place) -> None:
    new = place.folder / "new"
    place.write(new, SECOND)
    new.rename(place.key)


def replace_folder(place: Place) -> None:
    """As configuration management, package managers and `git checkout` do."""
    place.keys.rename(place.folder / "before")
    place.make_folder()
    place.write(place.key, SECOND)


def remove_folder(place: Place) -> None:
    place.key.unlink()
    place.keys.rmdir()
    wait_until(lambda: not place.keys.exists(), "it to go")
    place.make_folder()
    place.write(place.key, SECOND)


def exchange_folder(place: Place) -> None:
    """A folder that was made elsewhere comes in its place."""
    made = place.folder / "made"
    made.mkdir()
    (made / "key").write_text(SECOND)
    place.keys.rename(place.folder / "before")
    made.rename(place.keys)


@BY_USER
@pytest.mark.parametrize("change", [replace_key, replace_folder, remove_folder, exchange_folder])
def test_a_hidden_file_stays_hidden_when_its_folder_is_replaced(
    change: Callable[[Place], None], uid: int | None
) -> None:
    with folder_of(uid) as folder:
        place = Place(folder, uid)
        with looking(place, named=place.key, seen=place.key, uid=uid) as run:
            change(place)
            assert place.key.read_text() == SECOND
            out = finish(run)
    assert OTHER in out
    assert COMMON not in out


@BY_USER
def test_the_command_cannot_move_a_folder_from_under_the_cover(uid: int | None) -> None:
    """It moves the folder away and makes another; whoever renews the key writes it there."""
    with folder_of(uid) as folder:
        place = Place(folder, uid)
        inside = "mv keys before && mkdir keys && chmod 777 keys;"
        with looking(place, named=place.key, seen=place.key, inside=inside, uid=uid) as run:
            place.write(place.key, SECOND)
            out = finish(run)
    assert OTHER in out
    assert COMMON not in out


def test_a_link_that_leads_elsewhere_is_followed(tmp_path: Path) -> None:
    """As Kubernetes renews secrets: a new file next to the old one, and a link that is replaced."""
    place = Place(tmp_path, None)
    with looking(place, named=place.link, seen=place.link) as run:
        renewed = tmp_path / "renewed"
        renewed.write_text(SECOND)
        new = tmp_path / "new-link"
        new.symlink_to(renewed)
        new.rename(place.link)
        assert place.link.read_text() == SECOND
        out = finish(run)
    assert OTHER in out
    assert COMMON not in out


def test_the_command_cannot_lead_the_cover_away(tmp_path: Path) -> None:
    """The file of secrets is named by a link, which the command turns elsewhere; then the file is replaced."""
    place = Place(tmp_path, None)
    place.key.write_text(f'[KEY]\nvalue = "{FIRST}"\nhosts = ["api.test"]\n')
    bait = tmp_path / "bait"
    bait.write_text("bait")
    script = LOOK.format(inside="ln -sfn bait link; sleep 0.3")
    command = ["sh", "-c", script, "sh", str(place.link), str(place.key), str(place.other)]
    with Running(tmp_path, "--secrets", str(place.link), command=command, stdin=subprocess.PIPE, cwd=tmp_path) as run:
        run.wait_for("done")
        assert COMMON not in run.out
        replace_key(place)
        out = finish(run)
    assert OTHER in out
    assert COMMON not in out


@BY_USER
@pytest.mark.parametrize("victim", ["run", "init", "gateway"])
def test_nothing_is_left_after_a_sudden_death(victim: str, uid: int | None) -> None:
    with folder_of(uid) as folder:
        place = Place(folder, uid)
        with looking(place, named=place.key, seen=place.key, uid=uid) as run:
            all_of_them = [Process(pid) for pid in children_of(run.process.pid)]
            assert len(all_of_them) == 2
            all_of_them += run.inside()
            match victim:
                case "run":
                    run.process.kill()
                case "init":
                    run.init().kill()
                case _:
                    run.gateway().kill()
                    finish(run)
            run.wait()
            wait_gone(all_of_them)


@AS_ROOT
def test_a_second_way_to_the_folder_stays_closed(tmp_path: Path) -> None:
    """The same folder, mounted a second time before the run: hidden at first, and after the file was replaced too."""
    place = Place(tmp_path, None)
    again = tmp_path / "again"
    again.mkdir()
    config = tmp_path / "secrets.json"
    config.write_text(json.dumps({"KEY": {"file": str(place.key), "hosts": ["api.test"]}}))
    command = ["sh", "-c", LOOK.format(inside="ls again;"), "sh", str(again / "key"), str(place.key), str(place.other)]
    before = [
        "unshare",
        "--mount",
        "sh",
        "-c",
        'mount --bind "$0" "$1" && shift && exec "$@"',
        str(place.keys),
        str(again),
    ]
    with Running(
        tmp_path, "--secrets", str(config), command=command, before=before, stdin=subprocess.PIPE, cwd=tmp_path
    ) as run:
        assert run.process.stdin is not None
        with run.process.stdin:
            run.wait_for("done")
            assert "key" in run.out  # the folder is there
            assert COMMON not in run.out
            replace_key(place)
            out = finish(run)
    assert OTHER in out
    assert COMMON not in out


@BY_USER
def test_a_view_of_its_own_does_not_help_the_command(uid: int | None) -> None:
    """It makes a further namespace of mounts first: what is covered later is not covered there."""
    with folder_of(uid) as folder:
        place = Place(folder, uid)
        inside = 'unshare --user --map-root-user --mount sh -c \'mkfifo go; read x <go; cat "$0"; echo nested\' "$1" & '
        with looking(place, named=place.key, seen=place.key, inside=inside, uid=uid) as run:
            replace_key(place)
            wait_until(
                lambda: (folder / "go").exists() or run.process.poll() is not None or "unshare" in run.errors, "it"
            )
            assert run.process.stdin is not None
            if (folder / "go").exists():
                time.sleep(0.4)
                (folder / "go").write_text("\n")
                run.wait_for("nested")
            out = finish(run)
            errors = run.errors
    assert "nested" in out or "unshare" in errors  # it was tried
    assert OTHER in out
    assert COMMON not in out


def test_the_folder_of_a_hidden_file_stays_where_it_is_watched(tmp_path: Path) -> None:
    """Whoever renews the key has the folder open, and would write wherever the command had moved it."""
    place = Place(tmp_path, None)
    opened = os.open(place.keys, os.O_PATH)
    try:
        with looking(place, named=place.key, seen=place.key, inside="mv keys before 2>/dev/null;") as run:
            assert not (tmp_path / "before").exists()
            (tmp_path / "new").write_text(SECOND)
            os.rename(tmp_path / "new", "key", dst_dir_fd=opened)
            assert place.key.read_text() == SECOND
            out = finish(run)
    finally:
        os.close(opened)
    assert OTHER in out
    assert COMMON not in out
