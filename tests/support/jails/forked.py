"""What a forked child can do: each attempt in a process of its own, since what these modules change stays changed."""

from __future__ import annotations

import errno
import os
import signal
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from exeat.jail.libc import CLONE_NEWNS, CLONE_NEWUSER, MS_PRIVATE, MS_REC, PR_SET_DUMPABLE, mount, prctl, unshare

NOBODY = 65534
# Root can become someone without rights; someone without rights is tested as they are.
UIDS = (0, NOBODY) if os.geteuid() == 0 else (os.geteuid(),)


def attempt(*steps: Callable[[], object], uid: int | None = None) -> str:
    """Take the steps in a child, as a user if one is given, and say how it ended.

    "ok", the name of an errno, the name of a signal that killed it, or "exit N" if a step was an exec. No module may be
    imported in a step: another user cannot read them. Anything else that is raised fails the test.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        _take(steps, uid, writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read().decode()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if said.startswith("Traceback"):
        pytest.fail(said)
    if status < 0:
        return signal.Signals(-status).name
    return said or f"exit {status}"


def _take(steps: tuple[Callable[[], object], ...], uid: int | None, writer: int) -> None:
    said = "ok"
    try:
        signal.alarm(20)
        if uid is not None and uid != os.geteuid():
            become(uid)
        for step in steps:
            step()
    except OSError as error:
        said = errno.errorcode[error.errno or 0]
    except BaseException:  # whatever it is, it must not run on in the test's parent frames
        said = traceback.format_exc()
    finally:
        os.write(writer, said.encode())
        os._exit(0)


def become(uid: int) -> None:
    """Turn into another user for good. All capabilities are gone then."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


USERS = ["root", "ordinary"] if os.geteuid() == 0 else ["ordinary"]


def own_mounts(user: str) -> None:
    """Enter a namespace of mounts: root as it is, others with one of users as well."""
    if user == "root":
        unshare(CLONE_NEWNS)
    else:
        if os.geteuid() == 0:
            become(NOBODY)
            prctl(PR_SET_DUMPABLE, 1)  # or what is in /proc/self is root's
        own_users()
    mount(None, "/", None, MS_REC | MS_PRIVATE)


def own_users() -> None:
    uid, gid = os.geteuid(), os.getegid()
    unshare(CLONE_NEWUSER | CLONE_NEWNS)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        Path(f"/proc/self/{name}").write_text(text)
