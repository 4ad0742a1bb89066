"""Bytes as a file without a path, for interfaces that accept only paths, such as ssl's for private keys."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

_NOEXEC_SEAL = 0x0008  # MFD_NOEXEC_SEAL, Linux 6.3: where vm.memfd_noexec is 2, no other kind is available
_PIPE_HOLDS = 4_096  # at least so much fits into a pipe before anyone reads
_CHUNK = 1 << 20


@contextmanager
def unnamed_file(content: bytes) -> Iterator[str]:
    """A path that this process can open, to read the content once. Path and content are gone when the block ends.

    It leads over /proc/self or /dev/fd, which a process may follow for itself even when it cannot be dumped.
    """
    has_memory = hasattr(os, "memfd_create")
    descriptor = file_in_memory(content) if has_memory else _filled_pipe(content)
    try:
        yield f"/proc/self/fd/{descriptor}" if has_memory else f"/dev/fd/{descriptor}"
    finally:
        os.close(descriptor)


def file_in_memory(content: bytes) -> int:
    """A file without a name that holds this, to be passed on by its descriptor. Elsewhere than on Linux it is on disk,
    for a moment with a name: not for keys.
    """
    descriptor = _make_memory() if hasattr(os, "memfd_create") else _make_unlinked()
    try:
        _write_all(descriptor, content)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def content_of(descriptor: int) -> bytes:
    """All of a file that others have open, too."""
    parts, at = [], 0
    while data := os.pread(descriptor, _CHUNK, at):  # not read(): the place in the file is shared with others
        parts.append(data)
        at += len(data)
    return b"".join(parts)


def _make_memory() -> int:
    try:
        return os.memfd_create("exeat", os.MFD_CLOEXEC | _NOEXEC_SEAL)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.memfd_create("exeat", os.MFD_CLOEXEC)  # before Linux 6.3


def _make_unlinked() -> int:
    # Not by `tempfile`, which cannot be loaded once imports are sealed.
    path = f"{os.environ.get('TMPDIR') or '/tmp'}/exeat-{os.urandom(16).hex()}"  # noqa: S108 - made by us, with O_EXCL
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    os.unlink(path)
    return descriptor


def _filled_pipe(content: bytes) -> int:
    assert len(content) <= _PIPE_HOLDS, "more than a pipe takes at once"
    reader, writer = os.pipe()
    try:
        _write_all(writer, content)
    except BaseException:
        os.close(reader)
        raise
    finally:
        os.close(writer)  # so that the reader comes to an end
    return reader


def _write_all(descriptor: int, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(descriptor, left) :]


class TrustFiles(NamedTuple):
    """What a command is to trust, as open files on their way from the gateway's process into the jail.

    Descriptors: the roots with ours, ours alone, and both as a Java key store. All of it is public.
    """

    bundle: int
    own: int
    java: int
    subject_hash: str
