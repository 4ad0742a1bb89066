"""Files that the caller has open for the command: they are given for what they were opened for, and for no more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.programs import need
from tests.support.runs.running import ANYWHERE, AS_ROOT, BY_USER, Running, as_user, exeat, folder_of, python, run_argv

pytestmark = pytest.mark.threat("T-E3")

_STRANGER = 54_321  # an ordinary user, unlike nobody, who is taken for the owner of what has none here
_TEXT = "first\nsecond\nthird\n"

# Everything that changes a file, by a descriptor that was opened to read it. Says what worked, over another one.
_CHANGE = """
import json, os, sys
link = f"/proc/self/fd/{sys.argv[1]}"
number = int(sys.argv[1])
def write(path, flags):
    os.write(os.open(path, flags), b"changed")
ways = {
    "open to write": lambda: write(link, os.O_WRONLY),
    "open to read and write": lambda: write(link, os.O_RDWR),
    "open to append": lambda: write(link, os.O_WRONLY | os.O_APPEND),
    "truncate": lambda: os.truncate(link, 3),
    "mode": lambda: os.fchmod(number, 0o777),
    "mode by name": lambda: os.chmod(link, 0o777),
    "owner": lambda: os.fchown(number, os.getuid(), os.getgid()),
    "times": lambda: os.utime(number, (1, 1)),
    "attribute": lambda: os.setxattr(number, "user.left", b"behind"),
}
done = []
for name, way in ways.items():
    try:
        way()
        done.append(name)
    except OSError:
        pass
os.write(int(sys.argv[2]), json.dumps(done).encode())
"""
_ALL = {
    *("open to write", "open to read and write", "open to append", "truncate", "mode", "mode by name", "owner"),
    *("times", "attribute"),
}


@contextmanager
def a_file(uid: int | None) -> Iterator[Path]:
    """A file of this user's, in a folder that is not the one that commands are started in."""
    with folder_of(uid) as folder:
        path = folder / "file"
        path.write_text(_TEXT)
        path.chmod(0o640)
        if uid is not None:
            os.chown(path, uid, uid)
        yield path


def _state(path: Path) -> tuple[str, int, int, float]:
    found = path.stat()
    return path.read_text(), found.st_mode, found.st_nlink, found.st_mtime


@BY_USER
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_file_that_is_open_for_reading_cannot_be_changed(number: int, uid: int | None) -> None:
    """`< ~/.bashrc` means that it may be read. /proc/self/fd/0 would open it again, for anything."""
    command = python(_CHANGE, str(number), "2" if number == 1 else "1")
    names = ("stdin", "stdout", "stderr")
    with a_file(uid) as path, path.open() as stream:
        streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        streams[names[number]] = stream.fileno()
        before = _state(path)
        done = exeat("--quiet", command=command, uid=uid, cwd=ANYWHERE, **streams)
        answer = done.stdout or done.stderr
        assert json.loads(answer) == [], answer
        assert _state(path) == before
        outside = subprocess.run([*as_user(uid), *command], cwd=ANYWHERE, timeout=30, check=True, text=True, **streams)
        assert set(json.loads(outside.stdout or outside.stderr)) >= _ALL


@BY_USER
def test_it_can_be_read_as_ever(uid: int | None) -> None:
    """From where it stands, and again from the start, by descriptor and by name."""
    program = "import os; print([os.read(0, 5), os.pread(0, 3, 0), open('/dev/stdin', 'rb').read(3)])"
    with a_file(uid) as path, path.open("rb", buffering=0) as stream:
        stream.seek(6)
        done = exeat(command=python(program), uid=uid, cwd=ANYWHERE, stdin=stream.fileno())
    assert (done.status, done.stdout, done.stderr) == (0, "[b'secon', b'fir', b'fir']\n", "")


def test_what_is_not_read_is_left_for_the_next_program(tmp_path: Path) -> None:
    """A shell and the programs that it starts read the same file, each from where the last one stopped."""
    run = f'"{sys.executable}" -m exeat run --'
    (tmp_path / "file").write_text(_TEXT)
    for script in (
        f"{run} sh -c 'read line; echo $line'; cat",
        f"read line; echo $line; {run} true; cat",
        f"{run} cat; cat",
        f"{run} sh -c 'read line; echo $line'; {run} cat",
    ):
        done = exeat(argv=["sh", "-c", f"{{ {script}; }} < file"], cwd=tmp_path)
        assert (done.status, done.stdout, done.stderr) == (0, _TEXT, ""), script


def test_files_that_are_open_for_writing_are_written_as_ever(tmp_path: Path) -> None:
    """Whoever passes a file with `>` means that it is written. What others write to it goes before and after."""
    run = f'"{sys.executable}" -m exeat run --'
    script = f"""
    {{ echo one; {run} echo two; echo three; }} > out
    {{ echo four; {run} sh -c 'echo five; echo six >&2'; }} >> out 2>&1
    {run} sh -c 'read line; echo "$line and more" >&0' 0<> both
    """
    (tmp_path / "both").write_text("1\n2\n")
    done = exeat(argv=["sh", "-c", script], cwd=tmp_path)
    assert (done.status, done.stderr) == (0, "")
    assert (tmp_path / "out").read_text() == "one\ntwo\nthree\nfour\nfive\nsix\n"
    assert (tmp_path / "both").read_text() == "1\n1 and more\n"


@BY_USER
def test_a_file_by_another_number_is_not_passed_on(uid: int | None) -> None:
    """Most are left open by mistake. They are named, and a pipe can be passed instead."""
    with a_file(uid) as path:
        os.mkfifo(path.parent / "fifo")
        opened = [
            os.open(path, os.O_RDONLY),
            os.open(path, os.O_RDWR),
            os.open(path, os.O_WRONLY | os.O_APPEND),
            os.open(path, os.O_PATH),
            os.open(path.parent / "fifo", os.O_PATH),
        ]
        program = "import os, sys\nfor n in sys.argv[1:]:\n try: os.fstat(int(n)); print(n)\n except OSError: pass"
        command = python(program, *map(str, opened))
        try:
            outside = subprocess.run(command, pass_fds=opened, stdout=subprocess.PIPE, text=True, check=True)
            assert outside.stdout.split() == [str(each) for each in opened]
            done = exeat(command=command, uid=uid, cwd=ANYWHERE, pass_fds=opened)
        finally:
            for each in opened:
                os.close(each)
    assert (done.status, done.stdout) == (0, "")
    assert "not passed on to the command: open file" in done.stderr
    assert f"{opened[1]} ({path})" in done.stderr


def test_a_file_without_a_name_is_passed_on(tmp_path: Path) -> None:
    """Here-documents that are too long for a pipe, and memory: only who has it open reaches it."""
    need("bash")
    text = "x" * 200_000
    script = f'"{sys.executable}" -m exeat run -- sh -c "wc -c; wc -c <&7" <<<"$0" 7<<<"$0"'
    done = exeat(argv=["bash", "-c", script, text[:100_000]], cwd=tmp_path)
    assert (done.status, done.stdout.split(), done.stderr) == (0, ["100001", "100001"], "")
    memory = os.memfd_create("passed")
    try:
        os.write(memory, b"remembered")
        done = exeat(
            command=python("import os, sys; print(os.pread(int(sys.argv[1]), 99, 0))", str(memory)), pass_fds=[memory]
        )
    finally:
        os.close(memory)
    assert (done.stdout, done.stderr) == ("b'remembered'\n", "")


@AS_ROOT
def test_a_file_that_the_command_has_no_right_to_change_stays_as_it_is() -> None:
    """It was opened by someone else, in a folder that the command's user cannot enter."""
    with a_file(None) as path:
        path.parent.chmod(0o700)
        with path.open() as stream:
            done = exeat(command=["cat"], uid=_STRANGER, cwd=ANYWHERE, stdin=stream)
            assert (done.status, done.stdout, done.stderr) == (0, _TEXT, "")
        with path.open() as stream:
            done = exeat("--quiet", command=python(_CHANGE, "0", "1"), uid=_STRANGER, cwd=ANYWHERE, stdin=stream)
            assert json.loads(done.stdout) == []


@AS_ROOT
def test_a_file_that_is_not_found_under_its_name_is_refused() -> None:
    need("unshare", "mount")
    with a_file(None) as path:
        script = f'exec < {path}; mount -t tmpfs none {path.parent}; cd /; exec "$@"'
        argv = ["unshare", "-m", "sh", "-c", script, "sh", *run_argv([], ["echo", "started"])]
        done = exeat(argv=argv)
    assert (done.status, done.stdout) == (2, "")
    assert "standard input" in done.stderr
    assert "put a pipe between" in done.stderr


@AS_ROOT
@pytest.mark.parametrize("device", ["/dev/kmsg", "/dev/loop0"])
def test_a_device_as_a_standard_stream_is_refused(device: str) -> None:
    """Opened for reading, and root's command opens it again for writing."""
    try:
        number = os.open(device, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        pytest.skip(f"{device}: {error.strerror}")
    try:
        done = exeat(command=["echo", "started"], stdin=number)
    finally:
        os.close(number)
    assert (done.status, done.stdout) == (2, "")
    assert "put a pipe between" in done.stderr


# Processes inside

_LOOK = """
import json, os
ways = {}
for pid in (each for each in os.listdir("/proc") if each.isdigit()):
    names = ["root", "cwd", "exe", "fd", "map_files", "environ", "mem", "ns/mnt", "task/" + pid + "/root"]
    for name in names:
        path = f"/proc/{pid}/{name}"
        try:
            if name in ("fd", "map_files"):
                any(os.stat(f"{path}/{each}") for each in os.listdir(path))
            elif name in ("environ", "mem"):
                open(path, "rb").close()
            else:
                os.stat(path)
            ways.setdefault(pid, []).append(name)
        except OSError:
            pass
print(json.dumps([os.getpid(), ways]))
"""


@BY_USER
def test_the_first_process_shows_nothing_of_where_it_came_from(uid: int | None) -> None:
    """It was made from exeat's own process: its folders and files would be the host's."""
    done = exeat(command=python(_LOOK), uid=uid, cwd=ANYWHERE)
    own, ways = json.loads(done.stdout)
    assert {"root", "cwd", "exe", "fd"} <= set(ways.pop(str(own))), "the control"
    assert ways == {}


@AS_ROOT
@BY_USER
def test_the_first_process_has_nothing_open_but_what_it_needs(uid: int | None) -> None:
    with (
        folder_of(uid) as folder,
        Running(folder, command=["sh", "-c", "echo up; sleep 60"], uid=uid, cwd=ANYWHERE) as run,
    ):
        run.wait_for("up")
        place = Path(f"/proc/{run.init().pid}/fd")
        found = {int(each.name): str(each.readlink()) for each in place.iterdir()}
    more = sorted(what.partition(":[")[0] if "socket" in what else what for number, what in found.items() if number > 2)
    # Signals, who tries to nest, and the way to the runner.
    assert more == ["anon_inode:[signalfd]", "anon_inode:seccomp notify", "socket"], found
