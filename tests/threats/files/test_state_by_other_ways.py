"""Ways to exeat's state that are not its path: other layers, other mounts, raw disks, a usual place that is blocked.

Each is walked without a jail first, where it must lead to the state.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.programs import Finished, need
from tests.support.runs.running import AS_ROOT, BY_USER, NOBODY, TIMEOUT_S, as_user, exeat, python
from tests.support.runs.state_scene import BELOW_HOME, KEPT, Scene, scene, under_mounts

pytestmark = pytest.mark.threat("T-J1")

UNDER_MOUNTS = pytest.mark.parametrize("uid", [None, NOBODY], ids=["root", "nobody"])
FILE = "sandboxes/kept/allowlist.txt"


def both_ways(there: Scene, words: str) -> tuple[Finished, Finished]:
    """A shell's work without a jail, and in one with all of it shared for real. The mounts are made for each."""
    before, command = under_mounts(there.mounts), ["sh", "-c", words]
    free = exeat(argv=[*before, *as_user(there.uid), *command], env=there.environment(), cwd="/")
    layered = exeat(command=command, uid=there.uid, before=before, cwd="/", env=there.environment())
    assert KEPT not in layered.stdout
    shared = ("--write", str(there.folder))
    return free, exeat(*shared, command=command, uid=there.uid, before=before, cwd="/", env=there.environment())


def read_and_write(path: Path) -> str:
    return f"cat {path}; echo '* force' >> {path} && echo wrote; true"


@AS_ROOT
@UNDER_MOUNTS
def test_what_is_mounted_into_the_state(uid: int | None) -> None:
    """The sandboxes lie on a disk that has room, and are mounted into the state: they are still there as well."""
    need("unshare")
    with scene(uid, f"home/{BELOW_HOME}") as plain:
        data = plain.folder / "alias" / "sandboxes"
        mounts = f"rm -rf {data}; cp -a {plain.state}/sandboxes {data}; mount --bind {data} {plain.state}/sandboxes"
        free, held = both_ways(replace(plain, mounts=mounts), read_and_write(data / "kept" / "allowlist.txt"))
    assert free.stdout == f"{KEPT}wrote\n", free.stderr
    assert (held.status, held.stdout) == (0, ""), held


@AS_ROOT
@UNDER_MOUNTS
def test_the_lower_layer_of_an_overlay(uid: int | None) -> None:
    """State that has not been written to since the overlay was made is read from there, and so is what is added."""
    need("unshare")
    with scene(uid, f"lower/{BELOW_HOME}") as plain:
        folder, disk = plain.folder, plain.folder / "alias"
        layers = f"lowerdir={folder}/empty:{folder}/lower,upperdir={disk}/up,workdir={disk}/work"
        mounts = (
            f"mkdir -p {folder}/empty; mount -t tmpfs disk {disk}; mkdir {disk}/up {disk}/work;"
            f" chown --reference={folder}/lower {disk}/up {folder}/empty;"
            f" mount -t overlay -o {layers} over {folder}/home"
        )
        there = replace(plain, mounts=mounts)
        free, held = both_ways(there, read_and_write(plain.state / FILE))
    assert free.stdout == f"{KEPT}wrote\n", free.stderr
    assert (held.status, held.stdout) == (0, ""), held


@AS_ROOT
@UNDER_MOUNTS
def test_layers_of_an_overlay_hold_hidden_files_too(uid: int | None) -> None:
    """Rules in a file, as the state: once in the layer that is written to, once in the one below."""
    need("unshare")
    with scene(uid, f"first/{BELOW_HOME}") as plain:
        folder, disk = plain.folder, plain.folder / "alias"
        layers = f"lowerdir={folder}/low,upperdir={disk}/first,workdir={disk}/work"
        mounts = (
            f"mkdir -p {folder}/low; mount -t tmpfs disk {disk}; cp -a {folder}/first {disk}; mkdir {disk}/work;"
            f" echo 'one.test' > {disk}/first/upper.txt; echo 'two.test' > {folder}/low/lower.txt;"
            f" chown --reference={folder}/first {folder}/low/lower.txt {disk}/first/upper.txt;"
            f" mount -t overlay -o {layers} over {folder}/home"
        )
        before, env = under_mounts(mounts), plain.environment()
        upper, lower = f"{disk}/first/upper.txt", f"{folder}/low/lower.txt"
        options = [part for name in ("upper", "lower") for part in ("--policy", f"{folder}/home/{name}.txt")]
        command = [
            "sh",
            "-c",
            f"for each in {upper} {lower}; do cat $each; echo evil.test >> $each && echo wrote; done",
        ]
        free = exeat(argv=[*before, *as_user(uid), *command], env=env, cwd="/")
        held = exeat("--write", str(folder), *options, command=command, uid=uid, before=before, env=env, cwd="/")
    assert free.stdout.split() == ["one.test", "wrote", "two.test", "wrote"], free.stderr
    assert (held.stdout, held.stderr.count("enied")) == ("", 4), held


@AS_ROOT
@UNDER_MOUNTS
def test_a_mount_that_another_one_hides(uid: int | None) -> None:
    """It is the deepest on the path to the state and has nothing to do with it: the disk on top is mounted twice."""
    need("unshare")
    with scene(uid, f"home/{BELOW_HOME}") as plain:
        disk = plain.folder / "alias"
        mounts = (
            f"mount -t tmpfs disk {disk}; cp -a {plain.home} {disk}/home;"
            f" mount -t tmpfs old {plain.home}/.local; mount --bind {disk}/home {plain.home}"
        )
        free, held = both_ways(replace(plain, mounts=mounts), read_and_write(disk / "home" / BELOW_HOME / FILE))
    assert free.stdout == f"{KEPT}wrote\n", free.stderr
    assert (held.status, held.stdout) == (0, ""), held


@AS_ROOT
@UNDER_MOUNTS
def test_a_path_that_is_too_long_to_be_said(uid: int | None) -> None:
    """The kernel takes 4,095 bytes at once. Who goes step by step gets further."""
    need("unshare")
    below = "/".join(["s" * 200] * 6)
    with scene(uid, "home/own") as plain:
        at = plain.folder / "alias" / "/".join(["d" * 200] * 15)
        state = plain.home / below / "own"
        mounts = f"mkdir -p {at}; mount --bind {plain.home} {at}"
        subprocess.run([*as_user(uid), "sh", "-ec", f"mkdir -p {below}; mv own {below}"], cwd=plain.home, check=True)
        before, steps = under_mounts(mounts), ["sh", "-c", f"cd {at}; cd -P ./{below}/own && cat {FILE}; true"]
        env = plain.environment(EXEAT_HOME=str(state))
        free = exeat(argv=[*before, *as_user(uid), *steps], env=env, cwd="/")
        held = exeat(command=steps, uid=uid, before=before, env=env, cwd="/")
    assert free.stdout == KEPT, free.stderr
    assert held.stdout == "", held


@AS_ROOT
def test_disks_by_files_that_are_not_in_dev() -> None:
    """A chroot has a /dev of its own, or files made by mknod. Root needs no capability to open a disk by them.

    On the disk is the state, as on the file system, and everything else.
    """
    need("unshare")
    look = """
import os, sys
for path in sys.argv[1:]:
    try:
        os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))
        print(path)
    except OSError:
        pass
"""
    with scene(None, f"home/{BELOW_HOME}") as plain:
        at = plain.folder / "alias"
        mounts = f"mkdir -p {at}/dev; mount -t devtmpfs dev {at}/dev; rm -f {at}/disk; mknod {at}/disk b 7 0"
        paths = ["/dev/loop0", f"{at}/dev/loop0", f"{at}/disk"]
        before, command = under_mounts(mounts), python(look, *paths)
        free = exeat(argv=[*before, *command], env=plain.environment(), cwd="/")
        held = exeat(command=command, before=before, env=plain.environment(), cwd="/")
    assert free.stdout.split() == paths, free.stderr
    assert (held.status, held.stdout) == (0, ""), held


@BY_USER
@pytest.mark.parametrize(
    "block",
    ["touch .local/state", "ln -s /nowhere/state .local/state", "mkdir .local/state; chmod 555 .local/state"],
    ids=["file", "link", "closed folder"],
)
def test_something_stands_where_the_usual_place_would_be(block: str, uid: int | None) -> None:
    """With EXEAT_HOME set, the usual place is not in use. The command clears it and leaves a list for the next run."""
    sandbox = f"{BELOW_HOME}/sandboxes/default"
    clear = "if [ -d .local/state ]; then chmod 755 .local/state; else rm .local/state; fi"
    plant = f"{clear}; umask 077; mkdir -p {sandbox}; echo '* force' > {sandbox}/allowlist.txt"
    listed = [*as_user(uid), sys.executable, "-m", "exeat", "proxy", "list"]
    found = []
    for jailed in (False, True):
        with scene(uid, "home/own") as there:
            subprocess.run([*as_user(uid), "sh", "-ec", block], cwd=there.home, check=True)
            if jailed:
                env = there.environment(EXEAT_HOME=str(there.state))
                exeat("--write", ".", command=["sh", "-ec", plant], uid=uid, cwd=there.home, env=env)
            else:
                subprocess.run([*as_user(uid), "sh", "-ec", plant], cwd=there.home, check=True)
            done = subprocess.run(
                listed, env=there.environment(), capture_output=True, text=True, timeout=TIMEOUT_S, check=False, cwd="/"
            )
            found.append("* force" in done.stdout)
    assert found == [True, False]


@BY_USER
def test_names_that_are_no_text_and_odd_text(uid: int | None) -> None:
    """Held: the table of mounts is read as bytes, with its own spelling of blanks, tabs, newlines and backslashes."""
    for name in (b"a\xff\xfe b", b"a b\t\n\\134#c"):
        with scene(uid, "home/own") as there:
            home = os.fsencode(there.home)
            there.state.rename(os.fsdecode(home + b"/" + name))
            env = {os.fsencode(key): os.fsencode(value) for key, value in there.environment().items()}
            state = home + b"/" + name
            words = b'cat "$1/sandboxes/kept/allowlist.txt"; mkdir "$1/new"; mv "$1" "$1.moved"; true'
            command = [b"sh", b"-c", words, b"sh", state]
            free = subprocess.run([*map(os.fsencode, as_user(uid)), *command[:3], b"sh", state], env=env, check=True,
                                  capture_output=True, timeout=TIMEOUT_S, cwd="/")  # fmt: skip
            Path(os.fsdecode(state + b".moved")).rename(os.fsdecode(state))
            argv = [*as_user(uid), sys.executable, "-m", "exeat", "run", "--"]
            held = subprocess.run([*map(os.fsencode, argv), *command], env=env | {b"EXEAT_HOME": state}, check=True,
                                  capture_output=True, timeout=TIMEOUT_S, cwd="/")  # fmt: skip
            assert (free.stdout, held.stdout) == (KEPT.encode(), b""), held.stderr
            left = sorted(each.name for each in Path(os.fsdecode(state)).iterdir())
            assert left == ["new", "sandboxes"]  # both by the one outside
