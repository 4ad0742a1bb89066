"""exeat's own state as a target: a command cannot read, write, replace or plant any of it.

Of most homes a command has a copy, whose writes are thrown away. Here the home is shared for real (`--write`) as well.

One program tries everything. It is run outside first, on the same state, where all of it must work.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.programs import Finished, need
from tests.support.runs.running import (
    AS_ROOT,
    BY_USER,
    NOBODY,
    TIMEOUT_S,
    Running,
    as_user,
    environment,
    exeat,
    folder_of,
    python,
)
from tests.support.runs.state_scene import BELOW_HOME, KEPT, Scene, scene, under_mounts

pytestmark = pytest.mark.threat("T-J1")

_CASES = (("netns", None), ("netns", NOBODY), ("nft", None)) if os.geteuid() == 0 else (("netns", None),)
BY_JAIL = pytest.mark.parametrize(("jail", "uid"), _CASES, ids=[f"{jail}-{uid or 'caller'}" for jail, uid in _CASES])
# With mounts that only root can make, whoever runs exeat under them.
UNDER_MOUNTS = pytest.mark.parametrize("uid", [None, NOBODY], ids=["root", "nobody"])


def home_is(folder: Path, **more: str) -> dict[str, str]:
    return environment(HOME=str(folder), **more) | {"XDG_STATE_HOME": ""}


# The command's own home


@BY_JAIL
def test_state_in_the_same_home_is_out_of_reach(jail: str, uid: int | None) -> None:
    """Nothing on the way can be moved, and no process or descriptor leads there."""
    with scene(uid, f"home/{BELOW_HOME}") as there:
        assert there.escapes_outside()
        assert there.escapes_inside("--jail", jail) == []


@BY_JAIL
def test_state_in_a_home_that_is_not_shared_is_not_there(jail: str, uid: int | None) -> None:
    """What the command makes in its place is its own, and gone with it."""
    with scene(uid, f"home/{BELOW_HOME}") as there:
        own = {"plant", "move", "put link"}
        assert set(there.escapes_inside("--jail", jail, is_shared=False)) <= own


@BY_JAIL
def test_state_elsewhere_and_the_usual_place_that_is_not_there_yet(jail: str, uid: int | None) -> None:
    """With EXEAT_HOME, here below the working directory, a list could be left for a run without it."""
    with scene(uid, "home/project/own") as plain:
        usual = plain.home / BELOW_HOME
        there = replace(plain, missing={"usual": usual})
        assert there.escapes_outside()
        assert there.escapes_inside("--jail", jail, EXEAT_HOME=str(there.state)) == []
        assert list(usual.iterdir()) == []
        assert usual.stat().st_mode & 0o777 == 0o700


@BY_USER
def test_a_first_run_leaves_nothing_for_a_command_to_make(uid: int | None) -> None:
    """What is not there cannot be hidden, so it is made. The same words outside make a list of the command's own."""
    sandbox = f"{BELOW_HOME}/sandboxes/default"
    words = f"mkdir -p {sandbox} && echo '* force' > {sandbox}/allowlist.txt"
    with folder_of(uid) as folder:
        command = ["sh", "-c", f"{words}; mv .local old; {words}"]
        done = exeat("--write", ".", command=command, uid=uid, cwd=folder, env=home_is(folder))
        assert done.status != 0
        assert list((folder / BELOW_HOME).iterdir()) == []
        assert [each.name for each in folder.iterdir()] == [".local"]
        shutil.rmtree(folder / ".local")
        subprocess.run([*as_user(uid), "sh", "-ec", words], cwd=folder, check=True)
        assert (folder / sandbox / "allowlist.txt").read_text() == "* force\n"


_LOOK = """
import os, socket, sys
for name in ("allowlist.txt", "audit.jsonl", "control.sock"):
    try:
        if name.endswith(".sock"):
            socket.socket(socket.AF_UNIX).connect(f"{sys.argv[1]}/{name}")
        else:
            open(f"{sys.argv[1]}/{name}", "r+").close()
        print("reached", name)
    except OSError:
        pass
print("ready", flush=True)
sys.stdin.read()
"""


@BY_USER
def test_a_command_does_not_reach_the_sandbox_that_it_runs_in(uid: int | None) -> None:
    """Its list, its log and its control socket are there at that very moment, for its user outside."""
    with folder_of(uid) as folder:
        sandbox = folder / BELOW_HOME / "sandboxes" / "kept"
        look = python(_LOOK, str(sandbox))
        reader, writer = os.pipe()
        with (
            os.fdopen(reader) as end,
            Running(
                folder, "--new", "--name", "kept", command=look, uid=uid, cwd=folder, env=home_is(folder), stdin=end
            ) as running,
        ):
            running.wait_for("ready")
            outside = subprocess.run(
                [*as_user(uid), *look], input="", capture_output=True, text=True, timeout=TIMEOUT_S, check=True
            )
            os.close(writer)
            assert running.wait() == 0
            assert running.out == "ready\n"
        assert outside.stdout.split() == [
            *("reached", "allowlist.txt", "reached", "audit.jsonl", "reached", "control.sock"),
            "ready",
        ]


# The same folder by other paths


@AS_ROOT
@UNDER_MOUNTS
def test_other_mounts_of_the_state_are_covered(uid: int | None) -> None:
    """The home, the state, a part of it or one file, mounted a second time."""
    need("unshare")
    with scene(uid, f"home/{BELOW_HOME}") as plain:
        sources = {"home": plain.home, "state": plain.state, "part": plain.sandbox}
        at = plain.folder / "alias"
        file = plain.sandbox / "allowlist.txt"
        mounts = [f"mkdir -p {at}/{name}; mount --bind {source} {at}/{name}" for name, source in sources.items()]
        mounts.append(f"touch '{at}/one file'; mount --bind {file} '{at}/one file'")
        aliases = {name: at / name / file.relative_to(source) for name, source in sources.items()}
        there = replace(plain, mounts="\n".join(mounts), aliases=aliases | {"file": at / "one file"})
        assert there.escapes_outside()
        assert there.escapes_inside() == []
        named = _under(there, ["echo", "started"], "--unix", f"{at}/part/control.sock")
        assert (named.status, named.stdout) == (2, ""), named


@AS_ROOT
@UNDER_MOUNTS
def test_mounts_beside_the_way_change_nothing(uid: int | None) -> None:
    """A user namespace has a folder with mounts in it only as a whole, since they may hide something."""
    need("unshare")
    with scene(uid, f"home/{BELOW_HOME}") as plain:
        share = plain.home / ".local" / "share"
        there = replace(plain, mounts=f"mount -t tmpfs other {share} && touch {share}/mounted")
        assert there.escapes_outside()
        assert there.escapes_inside() == []
        assert _under(there, ["ls", str(share)]).stdout == "mounted\n"


@AS_ROOT
@UNDER_MOUNTS
def test_what_an_overlay_writes_to_is_covered(uid: int | None) -> None:
    """The state as the overlay shows it, and as it lies in the folder beneath."""
    need("unshare")
    with scene(uid, f"first/{BELOW_HOME}") as plain:
        folder, disk = plain.folder, plain.folder / "alias"
        (folder / "lower").mkdir()
        layers = f"lowerdir={folder}/lower,upperdir={disk}/first,workdir={disk}/work"
        mounts = (
            f"mount -t tmpfs disk {disk}; cp -a {folder}/first {disk}; mkdir {disk}/work;"
            f" mount -t overlay -o {layers} over {folder}/home"
        )
        file = f"{BELOW_HOME}/sandboxes/kept/allowlist.txt"
        words = (
            f"cat {disk}/first/{file}; cat {folder}/home/{file}; cd {disk}/first/.local;"
            " mv state other && mv other state && echo moved; true"
        )
        there = replace(plain, mounts=mounts)
        command = ["sh", "-c", words]
        free = exeat(argv=[*under_mounts(mounts), *as_user(uid), *command], env=there.environment(), cwd="/")
        assert free.stdout == f"{KEPT}{KEPT}moved\n"
        assert KEPT not in _under(there, command).stdout
        held = _under(there, command, "--write", str(folder))
        assert (held.status, held.stdout) == (0, ""), held.stderr
        assert held.stderr.count("Device or resource busy") == 1


def _under(there: Scene, command: list[str], *options: str) -> Finished:
    before = under_mounts(there.mounts)
    return exeat(*options, command=command, uid=there.uid, before=before, cwd="/", env=there.environment())


# What cannot be hidden, or made: nothing starts


def refusal(folder: Path, env: dict[str, str], *options: str, **more: object) -> str:
    done = exeat(*options, command=["echo", "started"], env=env, **({"cwd": folder} | more))  # type: ignore[arg-type]
    assert (done.status, done.stdout) == (2, ""), done
    return done.stderr


def test_a_link_that_the_command_could_turn_is_refused(tmp_path: Path) -> None:
    """If something is to be kept there. The setting that helps is said; with it the link still cannot be turned."""
    (tmp_path / "data").mkdir()
    (tmp_path / ".local").symlink_to("data")
    (tmp_path / "data" / "here").write_text("here\n")
    setting = f"{tmp_path}/data/state/exeat"
    assert f"EXEAT_HOME={setting}" in refusal(tmp_path, home_is(tmp_path), "--write", ".")
    assert f"EXEAT_HOME={setting}" in refusal(tmp_path, home_is(tmp_path), "--new", "--name", "kept")
    words = ["sh", "-c", "rm .local; ln -sfnT /dev .local; cat .local/here; mkdir .local/state/exeat/planted"]
    done = exeat("--write", ".", command=words, env=home_is(tmp_path, EXEAT_HOME=setting), cwd=tmp_path)
    assert (done.status, done.stdout) == (1, "here\n"), done.stderr
    assert (tmp_path / ".local").readlink() == Path("data")
    assert list(Path(setting).iterdir()) == []
    subprocess.run(words, cwd=tmp_path, check=False, capture_output=True)
    assert (tmp_path / ".local").readlink() == Path("/dev")


def test_what_would_be_hidden_with_the_state_is_refused(tmp_path: Path) -> None:
    """The root, the home itself, the working directory, a standard stream. Other files are streams as ever."""
    assert "EXEAT_HOME" in refusal(tmp_path, home_is(tmp_path, EXEAT_HOME="/"))
    assert "which every command needs" in refusal(Path("/usr"), home_is(tmp_path, EXEAT_HOME=str(tmp_path)))
    env = home_is(tmp_path)
    (tmp_path / "mine").write_text("mine")
    with (tmp_path / "mine").open() as stream:
        assert exeat(command=["cat"], env=env, cwd=tmp_path, stdin=stream).stdout == "mine"
    sandbox = tmp_path / BELOW_HOME / "sandboxes" / "kept"
    sandbox.mkdir(parents=True, mode=0o700)
    assert "the working directory is in exeat's own folder" in refusal(sandbox, env)
    (sandbox / "allowlist.txt").write_text(KEPT)
    with (sandbox / "allowlist.txt").open() as stream:
        assert "standard input is a file that is hidden" in refusal(tmp_path, env, stdin=stream)


@AS_ROOT
@UNDER_MOUNTS
def test_a_home_that_nobody_can_write_to_is_no_obstacle(uid: int | None) -> None:
    """Read-only, or someone else's: the command makes its own folder, in its layer. With a name there is no run."""
    need("unshare")
    with folder_of(None) as folder:
        before = under_mounts(f"mount --bind -o ro {folder} {folder}" if uid is None else "")
        plant = ["sh", "-c", f"mkdir -p {folder}/{BELOW_HOME}; echo tried"]
        done = exeat(command=plant, uid=uid, env=home_is(folder), cwd="/", before=before)
        assert (done.status, done.stdout) == (0, "tried\n"), done.stderr
        named = exeat("--new", "--name", "kept", command=plant, uid=uid, env=home_is(folder), cwd="/", before=before)
        assert (named.status, named.stdout) == (2, ""), named
        assert "EXEAT_HOME" in named.stderr
        assert list(folder.iterdir()) == []


# What happens to the state while a command runs


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "rm -r exeat"),
        (("--new", "--name", "kept"), "rm -r exeat"),
        ((), "mv exeat away"),
        ((), "mv ../../.local ../../away"),
    ],
    ids=["removed", "removed with its sandbox", "moved", "moved with the way to it"],
)
def test_a_run_ends_when_the_state_is_taken_away_from_under_it(
    options: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    """By its owner, outside: what hides it goes with it. Other changes near it, and other sandboxes, do not matter."""
    reader, writer = os.pipe()
    with (
        os.fdopen(reader) as end,
        os.fdopen(writer, "wb", buffering=0) as given,
        Running(
            tmp_path, "--write", ".", *options, command=["cat"], cwd=tmp_path, env=home_is(tmp_path), stdin=end
        ) as running,
    ):
        given.write(b"one\n")
        running.wait_for("one")
        place = tmp_path / ".local" / "state"
        (place / "exeat" / "sandboxes" / "other").mkdir(parents=True)
        (place / "exeat" / "sandboxes" / "other").rmdir()
        (place / "other").mkdir()
        (place / "other").rmdir()
        given.write(b"two\n")
        running.wait_for("two")
        subprocess.run(["sh", "-c", words], cwd=place, check=True)
        assert running.wait() == 2
        assert "exeat's own folder was moved or removed" in running.errors


# What the command may still do


@BY_USER
def test_files_can_be_moved_and_linked_along_the_way(uid: int | None) -> None:
    """What is on the way stays in its place, and is still one file system: package managers link files there."""
    words = (
        "import os\n"
        "open('.cache/a', 'w').close(); os.mkdir('.local/state/mine')\n"
        "os.link('.cache/a', '.local/share/a'); os.rename('.cache/a', '.local/state/mine/a')\n"
        "os.rename('.local/share', '.local/share2'); os.rename('.local/state/mine', 'mine')\n"
        "print(*os.listdir('mine'), *os.listdir('.local/share2'))\n"
    )
    with scene(uid, f"home/{BELOW_HOME}") as there:
        done = exeat("--write", ".", command=python(words), uid=uid, cwd=there.home, env=there.environment())
    assert done.stdout == "a a\n", done.stderr
