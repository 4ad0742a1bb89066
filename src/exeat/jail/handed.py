"""Passes an environment from one process to another, in the form of /proc, through a file or pipe that is read once."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping

from exeat.errors import ExeatError

Environ = dict[bytes, bytes]


def as_proc_has_it(environ: Mapping[str, str]) -> bytes:
    return b"".join(b"%b=%b\0" % (os.fsencode(name), os.fsencode(value)) for name, value in environ.items())


def read_environ(descriptor: int, length: int) -> Environ:
    """All of it, from a pipe or the beginning of a file that others may read as well. It stays open. ExeatError.

    Freed memory keeps its content, and there may be a secret's value in it. So there is one copy, which can be wiped.
    """
    data = bytearray(length)
    environ = {}
    is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
    with memoryview(data) as view:
        filled = 0
        while filled < length:
            left = [view[filled:]]
            # Not by the place in the file: who else has it open shares that.
            count = os.preadv(descriptor, left, filled) if is_file else os.readv(descriptor, left)
            left[0].release()
            if not count:
                raise ExeatError("the command's environment did not arrive")
            filled += count
        start = 0
        while start < length:
            equals, end = data.index(b"=", start), data.index(b"\0", start)
            environ[bytes(view[start:equals])] = bytes(view[equals + 1 : end])
            start = end + 1
    data[:] = bytes(length)
    return environ


def have_environ(environ: Environ) -> None:
    """Have this environment, and nothing of the one that we were started with."""
    for name in list(os.environb):
        del os.environb[name]
    os.environb.update(environ)
