"""Holds places again, in a jail that stands, after something outside has put another file there.

A mount goes with its file: when an editor, or git, puts a new one in its place, that is neither hidden nor read-only.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from exeat.jail.files.holding import Holdings, Reach
from exeat.jail.libc import call
from exeat.jail.limits.privileges import hide_memory


def hold_again(
    holdings: Holdings, roots: Mapping[str, os.stat_result], namespaces: Sequence[int], heap: str, blank: str
) -> str:
    """Hold what is not held, in the jail of these namespaces: of users, if it has one, and of mounts.

    `roots` are the shared folders as they are outside: the command can put another folder before its own, and that
    must not be taken for it. `heap` and `blank` are as for the builder. Returns what went wrong.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        said = b"?"
        try:
            descriptors = os.open("/proc/self/fd", os.O_PATH | os.O_CLOEXEC)  # in the jail's /proc we are not
            for namespace in namespaces:
                call("setns", namespace, 0)
            os.fchdir(descriptors)
            hide_memory()  # what it can do is more than others of our user may
            _hold_in_jail(holdings, roots, heap, blank)
            said = b""
        except BaseException as error:  # whatever it is, it must not run on in the caller's frames
            said = os.fsencode(str(error))[:512] or b"?"
        finally:
            os.write(writer, said)
            os._exit(1 if said else 0)
    os.close(writer)
    try:
        said = os.read(reader, 512)
    finally:
        os.close(reader)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return os.fsdecode(said) or (f"status {status}" if status else "")


def _hold_in_jail(holdings: Holdings, roots: Mapping[str, os.stat_result], heap: str, blank: str) -> None:
    opened = {}
    for root, known in roots.items():
        opened[root] = os.open(root, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        if not os.path.samestat(os.fstat(opened[root]), known):
            raise OSError(f"{root} is no longer at its place in the jail")
    reach = Reach(".", opened)
    holdings.that_are_open(reach).hold(heap, blank, reach)
