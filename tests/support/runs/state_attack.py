"""What a command would do to exeat's state (J1), each act undone after it. Run as text, outside and in a jail.

Gets JSON: `state` and `cwd`, a folder `below` which to search, `aliases` (other paths of the list), what is
`on the way`, the `missing` places of state to plant in, and the list's device and inode. Prints what came of each act.
"""

# What is tried are system calls.
# ruff: noqa: PTH102, PTH103, PTH104, PTH106, PTH118, PTH119, PTH207, PTH208, PTH211

import ctypes
import errno
import glob
import json
import os
import socket
import sys
from collections.abc import Callable, Iterable
from functools import partial

GIVEN = json.loads(sys.argv[1])
STATE: str = GIVEN["state"]
SANDBOX = f"{STATE}/sandboxes/kept"
RENAME_EXCHANGE, AT_FDCWD = 2, -100
said: dict[str, str] = {}


def attempt(name: str, act: Callable[[], object]) -> None:
    try:
        act()
        said[name] = "done"
    except OSError as error:
        said[name] = errno.errorcode.get(error.errno or 0, str(error))


def read(path: str) -> None:
    with open(path) as file:
        if "kept.test" not in file.read():
            raise OSError(errno.ENODATA, "another file")


def write(path: str) -> None:
    read(path)
    with open(path, "r+") as file:
        file.write("kept.test\n")


def move(path: str) -> None:
    os.rename(path, f"{path}.moved")
    os.rename(f"{path}.moved", path)


def exchange(path: str) -> None:
    other = f"{path}.other"
    os.mkdir(other)
    try:
        for _ in range(2):
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.renameat2(AT_FDCWD, path.encode(), AT_FDCWD, other.encode(), RENAME_EXCHANGE):
                raise OSError(ctypes.get_errno(), "renameat2")
    finally:
        os.rmdir(other)


def put_link(path: str) -> None:
    os.rename(path, f"{path}.moved")
    os.symlink(f"{path}.moved", path)
    os.unlink(path)
    os.rename(f"{path}.moved", path)


def connect(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)


def plant(state: str) -> None:
    folder = f"{state}/sandboxes/planted"
    os.makedirs(folder)
    with open(f"{folder}/allowlist.txt", "w") as file:
        file.write("* force\n")


def list_all() -> None:
    if "kept" not in os.listdir(f"{STATE}/sandboxes"):
        raise OSError(errno.ENODATA, "empty")


def go_step_by_step() -> None:
    at = os.open("/", os.O_RDONLY)
    for part in STATE.strip("/").split("/"):
        at = os.open(part, os.O_RDONLY, dir_fd=at)
    if "sandboxes" not in os.listdir(at):
        raise OSError(errno.ENODATA, "empty")


def read_one_of(paths: Iterable[str]) -> None:
    last = OSError(errno.ENOENT, "no such way")
    for path in paths:
        try:
            return read(path)
        except OSError as error:
            last = error
    raise last


def find() -> None:
    for top, _, names in os.walk(GIVEN["below"]):
        for name in names:
            try:
                return read(os.path.join(top, name))
            except (OSError, UnicodeDecodeError):
                continue
    raise OSError(errno.ENOENT, "nowhere")


def use_inherited() -> None:
    for name in os.listdir("/proc/self/fd"):
        try:
            found = os.stat(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if [found.st_dev, found.st_ino] == GIVEN["list"]:
            return write(f"/proc/self/fd/{name}")
    raise OSError(errno.EBADF, "not inherited")


attempt("list", list_all)
attempt("step by step", go_step_by_step)
for name in ("allowlist.txt", "audit.jsonl"):
    attempt(f"read {name}", partial(read, f"{SANDBOX}/{name}"))
    attempt(f"write {name}", partial(write, f"{SANDBOX}/{name}"))
attempt("connect", partial(connect, f"{SANDBOX}/control.sock"))
processes = [*glob.glob("/proc/[0-9]*"), "/proc/self", "/proc/thread-self"]
from_cwd = os.path.relpath(SANDBOX, GIVEN["cwd"])
attempt("root of a process", partial(read_one_of, [f"{each}/root{SANDBOX}/allowlist.txt" for each in processes]))
attempt("cwd of a process", partial(read_one_of, [f"{each}/cwd/{from_cwd}/allowlist.txt" for each in processes]))
attempt("inherited", use_inherited)
attempt("find", find)
for name, path in GIVEN["aliases"].items():
    attempt(f"read {name}", partial(read, path))
    attempt(f"write {name}", partial(write, path))
attempt("plant", partial(plant, STATE))
attempt("move", partial(move, STATE))
attempt("put link", partial(put_link, STATE))
for path in GIVEN["on the way"]:
    for act in (move, exchange, put_link):
        attempt(f"{act.__name__} {os.path.basename(path)}", partial(act, path))
for name, folder in GIVEN["missing"].items():
    attempt(f"plant {name}", partial(plant, folder))
print(json.dumps(said))
