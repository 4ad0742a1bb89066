"""What is held in a shared folder, by whoever tries: each in a mount namespace of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn, TextIO

import pytest

from exeat.jail.files.holding import (  # noqa: F401 - for what is run in a namespace
    Holdings,
    Place,
    hold_hidden,
    hold_read_only,
    places_on_way,
)
from exeat.jail.libc import (
    MS_BIND,
    MS_REC,
    mount,
)
from tests.support.gateways.redirected import require
from tests.support.jails.forked import NOBODY, USERS, own_mounts, own_users  # noqa: F401 - for what is run in a namespace
from tests.support.runs.running import folder_of

BUSY, FIXED, ELSEWHERE = "Device or resource busy", "Read-only file system", "Invalid cross-device link"


class Scene:
    """A shared folder, and a process that holds things in it and then tries to change them."""

    def __init__(self, folder: Path, user: str) -> None:
        self.root = folder / "project"
        self.root.mkdir()
        (folder / "own").mkdir()
        self.user = user
        self._folder = folder

    def run(self, program: str) -> list[str]:
        """What a program prints, line by line. It is forked: another user may not be able to read our modules."""
        if self.user == "ordinary" and os.geteuid() == 0:
            subprocess.run(["chown", "-hR", f"{NOBODY}:{NOBODY}", str(self._folder)], check=True)
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            self._live(program, writer)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            said = pipe.read()
        assert os.waitpid(pid, 0)[1] == 0, said
        return said.splitlines()

    def _live(self, program: str, writer: int) -> NoReturn:
        status = 1
        with os.fdopen(writer, "w") as out:
            try:
                signal.alarm(60)
                own_mounts(self.user)
                exec(program, self._names(out))
                status = 0
            except BaseException:
                out.write(traceback.format_exc())
        os._exit(status)

    def _names(self, out: TextIO) -> dict[str, Any]:
        """The shared folder is a mount and the working directory, as in a jail. What programs are written with."""
        root, own = str(self.root), str(self._folder / "own")
        mount(root, root, None, MS_BIND | MS_REC)
        mount("exeat", own, "tmpfs", 0, "mode=755")
        Path(f"{own}/pins").mkdir(0)
        os.close(os.open(f"{own}/blank", os.O_CREAT | os.O_WRONLY, 0o444))
        os.chdir(root)

        def at(*names: str) -> list[Place]:
            return [Place(root, f"{root}/{name}") for name in names]

        def say(*what: object) -> None:
            print(*what, file=out)

        def tried(*calls: Callable[[], object]) -> None:
            for call in calls:
                try:
                    call()
                    say("done")
                except OSError as error:
                    say(os.strerror(error.errno or 0))

        def write(path: str, text: str = "x") -> None:
            with open(path, "w") as file:
                file.write(text)

        names = {"root": root, "heap": f"{own}/pins", "blank": f"{own}/blank", "at": at, "say": say, "tried": tried}
        return globals() | names | {"write": write}


@pytest.fixture(params=USERS)
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    require()
    with folder_of(None) as folder:
        yield Scene(folder, request.param)


def make(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


TRIES = """
tried(
    lambda: write("a/b/config"),
    lambda: os.unlink("a/b/config"),
    lambda: os.rename("a/b/config", "a/b/other"),
    lambda: (write("new"), os.replace("new", "a/b/config")),
    lambda: os.rename("a/b", "a/c"),
    lambda: os.rename("a", "z"),
    lambda: os.link("a/b/config", "second"),
    lambda: os.chmod("a/b/config", 0o777),
)
"""


def test_without_holding_all_of_it_can_be_done(scene: Scene) -> None:
    make(scene.root / "a/b/config")
    # In an order in which one does not take the ground from under the next.
    program = """
tried(
    lambda: write("a/b/config"),
    lambda: os.chmod("a/b/config", 0o777),
    lambda: os.link("a/b/config", "second"),
    lambda: (write("new"), os.replace("new", "a/b/config")),
    lambda: os.rename("a/b/config", "a/b/other"),
    lambda: os.unlink("a/b/other"),
    lambda: os.rename("a/b", "a/c"),
    lambda: os.rename("a", "z"),
)
"""
    assert scene.run(program) == ["done"] * 8


def test_a_file_is_read_only_and_so_is_the_way_to_it(scene: Scene) -> None:
    make(scene.root / "a/b/config", "kept")
    said = scene.run(f"hold_read_only(at('a/b/config'), heap){TRIES}say(open('a/b/config').read())")
    assert said == [FIXED, BUSY, BUSY, BUSY, BUSY, BUSY, ELSEWHERE, FIXED, "kept"]
    assert (scene.root / "a/b/config").read_text() == "kept"


def test_what_is_next_to_it_can_be_changed_and_moved(scene: Scene) -> None:
    """Along the way as well: it is one file system still."""
    make(scene.root / "a/b/config")
    make(scene.root / "a/b/index")
    program = (
        "hold_read_only(at('a/b/config'), heap)\n"
        "tried(lambda: write('a/b/index.lock'), lambda: os.replace('a/b/index.lock', 'a/b/index'),"
        " lambda: os.rename('a/b/index', 'index'), lambda: os.link('index', 'a/second'), lambda: os.mkdir('a/b/new'))"
    )
    assert scene.run(program) == ["done"] * 5


def test_a_folder_is_read_only_with_all_that_is_in_it(scene: Scene) -> None:
    make(scene.root / "hooks/deep/file")
    program = (
        "hold_read_only(at('hooks'), heap)\n"
        "tried(lambda: write('hooks/new'), lambda: write('hooks/deep/file'), lambda: os.rename('hooks', 'z'),"
        " lambda: os.rmdir('hooks'), lambda: write('free'))"
    )
    assert scene.run(program) == [FIXED, FIXED, BUSY, BUSY, "done"]


def test_a_place_in_a_held_folder_may_stay_writable(scene: Scene) -> None:
    make(scene.root / "settings/local.json")
    make(scene.root / "settings/main.json")
    program = (
        "hold_read_only(at('settings'), heap, at('settings/local.json'))\n"
        "tried(lambda: write('settings/local.json'), lambda: write('settings/main.json'))"
    )
    assert scene.run(program) == ["done", FIXED]


def test_a_link_is_pinned_and_followed_as_before(scene: Scene) -> None:
    make(scene.root / "elsewhere", "there")
    (scene.root / "a").mkdir()
    (scene.root / "a/link").symlink_to("../elsewhere")
    program = (
        "hold_read_only(at('a/link'), heap)\n"
        "tried(lambda: os.unlink('a/link'), lambda: os.rename('a/link', 'z'), lambda: os.rename('a', 'z'))\n"
        "say(open('a/link').read())"
    )
    assert scene.run(program) == [BUSY] * 3 + ["there"]


def test_a_way_over_a_link_is_refused(scene: Scene) -> None:
    make(scene.root / "real/file")
    (scene.root / "link").symlink_to("real")
    assert scene.run("tried(lambda: hold_read_only(at('link/file'), heap))") == ["Not a directory"]


def test_nothing_outside_of_the_root_is_held(scene: Scene) -> None:
    program = "tried(lambda: hold_read_only([Place(root, '/etc')], heap), lambda: hold_read_only(at('..'), heap))"
    assert scene.run(program) == ["Invalid argument"] * 2


def test_a_hidden_file_is_empty_and_stays_where_it_is(scene: Scene) -> None:
    make(scene.root / "a/.env", "secret")
    program = (
        "say(open('a/.env').read())\n"
        "hold_hidden(at('a/.env'), heap, blank)\n"
        "say(open('a/.env').read() == '')\n"
        "tried(lambda: write('a/.env'), lambda: os.rename('a/.env', 'z'), lambda: os.rename('a', 'z'),"
        " lambda: os.link('a/.env', 'a/second'))"
    )
    said = scene.run(program)
    assert said == ["secret", "True", FIXED, BUSY, BUSY, ELSEWHERE]
    assert (scene.root / "a/.env").read_text() == "secret"


def test_a_hidden_folder_is_empty_but_for_what_is_kept(scene: Scene) -> None:
    make(scene.root / ".ssh/id", "secret")
    make(scene.root / ".ssh/config", "Host x")
    (scene.root / ".ssh/trap").symlink_to("id")
    program = (
        "hold_hidden([at('.ssh')[0]._replace(keep=('config', 'missing', 'trap'))], heap, blank)\n"
        "say(os.listdir('.ssh'), open('.ssh/config').read())\n"
        "tried(lambda: write('.ssh/config'), lambda: write('.ssh/new'), lambda: os.rename('.ssh', 'z'))"
    )
    assert scene.run(program) == ["['config'] Host x", FIXED, FIXED, BUSY]


def test_the_root_itself_can_be_a_file(scene: Scene) -> None:
    make(scene.root / "file", "secret")
    program = (
        "file = os.path.join(root, 'file')\nmount(file, file, None, MS_BIND)\n"
        "hold_read_only([Place(file, file)], heap)\ntried(lambda: write(file))\n"
        "hold_hidden([Place(file, file)], heap, blank)\nsay(open(file).read() == '')"
    )
    assert scene.run(program) == [FIXED, "True"]


def test_the_heap_is_out_of_reach_and_no_second_way(scene: Scene) -> None:
    make(scene.root / "a/config")
    make(scene.root / "b/key", "secret")
    program = (
        "hold_read_only(at('a/config'), heap)\nhold_hidden(at('b/key'), heap, blank)\n"
        "say(os.stat(heap).st_mode & 0o777, os.stat(heap).st_dev != os.stat('a').st_dev)\n"
        "tried(lambda: os.rename('a', 'z'), lambda: os.rename('b', 'z'), lambda: open(heap + '/key'),"
        " lambda: os.mkdir(heap + '/x'))"
    )
    said = scene.run(program)
    assert said[:3] == ["0 True", BUSY, BUSY]
    assert "done" not in said


def test_a_folder_with_mounts_in_it_can_be_on_the_way(scene: Scene) -> None:
    make(scene.root / "a/config")
    (scene.root / "a/mounted").mkdir()
    program = (
        "mount('t', 'a/mounted', 'tmpfs')\nown_users()\n"
        "hold_read_only(at('a/config'), heap)\ntried(lambda: write('a/config'), lambda: os.rename('a', 'z'))"
    )
    assert scene.run(program) == [FIXED, BUSY]


def test_a_folder_can_be_pinned_and_stay_writable(scene: Scene) -> None:
    make(scene.root / "tools/inner/file")
    program = (
        "Holdings(pinned=tuple(at('tools/inner'))).hold(heap, blank)\n"
        "tried(lambda: write('tools/inner/file'), lambda: os.rename('tools/inner/file', 'file'),"
        " lambda: os.rename('tools/inner', 'z'), lambda: os.rename('tools', 'z'))"
    )
    assert scene.run(program) == ["done", "done", BUSY, BUSY]


def test_every_link_on_the_way_to_a_file_is_a_place_to_hold(tmp_path: Path) -> None:
    root = Path(os.path.realpath(tmp_path))
    make(root / "real/policy.toml")
    (root / "folder").symlink_to("real")
    (root / "link.toml").symlink_to("folder/policy.toml")
    found = places_on_way(str(root), str(root / "link.toml"))
    assert [place.path.removeprefix(f"{root}/") for place in found] == ["link.toml", "folder", "real/policy.toml"]
    assert places_on_way(str(root / "real"), str(root / "link.toml")) == [
        Place(str(root / "real"), str(root / "real/policy.toml"))
    ]


def test_places_may_lie_in_one_another(scene: Scene) -> None:
    """As an environment does in the folder of its interpreter, which may be written to elsewhere."""
    for name in ("tools/sub/file", "tools/free/file", "tools/free/inner/file"):
        make(scene.root / name)
    program = (
        "held = tuple(at('tools', 'tools/sub', 'tools/free/inner'))\n"
        "Holdings(read_only=held, still_writable=tuple(at('tools/free'))).hold(heap, blank)\n"
        "tried(lambda: write('tools/sub/file'), lambda: write('tools/free/file'),"
        " lambda: write('tools/free/inner/file'), lambda: os.rename('tools/free/inner', 'tools/free/z'))"
    )
    assert scene.run(program) == ["Read-only file system", "done", "Read-only file system", BUSY]


def test_what_was_removed_since_it_was_found_is_not_held_and_the_rest_is(scene: Scene) -> None:
    """Others work in a shared folder too: a clone that fails takes its folder away again."""
    make(scene.root / "a/b/config")
    program = """
Holdings(at("gone/config", "a/b/config"), at("gone/x"), at("gone/key"), at("gone")).hold(heap, blank)
tried(lambda: write("a/b/config"), lambda: os.rename("a", "z"))
"""
    assert scene.run(program) == [FIXED, BUSY]
