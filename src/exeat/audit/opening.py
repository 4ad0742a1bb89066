"""From what the user named as the log to a sink, with errors that say what to do."""

from __future__ import annotations

import errno
import os
import stat

from exeat.audit.logfile import LogFile
from exeat.audit.sink import MemorySink, Sink, StreamSink
from exeat.errors import StartError, log_not_opened

_STANDARD = {"-": 1, "/dev/stdout": 1, "/dev/stderr": 2}


def open_sink(target: str | None, *, max_bytes: int, keep: int, in_reach: bool = False) -> Sink:
    """The sink for `target`: None, `-` for standard output, a file, or a device or pipe as a stream."""
    if target is None:
        return MemorySink()
    if max_bytes < 0 or keep < 1:
        raise StartError("the audit log needs max_bytes of 0 or more and keep of 1 or more")
    try:
        if target in _STANDARD:
            return StreamSink(os.dup(_STANDARD[target]))
        if _is_stream(target):
            return StreamSink(_open_stream(target))
        return LogFile(target, max_bytes=max_bytes, keep=keep, in_reach=in_reach)
    except OSError as error:
        raise log_not_opened(target, error) from error


def _is_stream(target: str) -> bool:
    try:
        mode = os.lstat(target).st_mode
    except FileNotFoundError:
        return False
    return stat.S_ISCHR(mode) or stat.S_ISFIFO(mode)


def _open_stream(target: str) -> int:
    """A device or a named pipe. Never blocks: a pipe without a reader is an error at once."""
    fd = os.open(target, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
    found = os.fstat(fd)
    is_pipe = stat.S_ISFIFO(found.st_mode)
    owners = {os.geteuid()} if is_pipe else {os.geteuid(), 0}
    if not (is_pipe or stat.S_ISCHR(found.st_mode)) or found.st_uid not in owners:
        os.close(fd)
        raise OSError(errno.EPERM, f"not a pipe or device of ours (owner uid {found.st_uid})")
    return fd
