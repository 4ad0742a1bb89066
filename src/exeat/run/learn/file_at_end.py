"""A file written at the end of a run: checked before the command starts, replaced in one step.

A learned policy (`--learn-out`), or what the run came to (`--summary-json`).

The command may write in the same folder. So nothing here follows a link, and at the end the folder must be the one
that it was. No descriptor is kept: the command comes from the process that this is part of. The file is there before
the jail is built, so that it can be hidden.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from exeat.errors import ConfigError, StartError
from exeat.paths import look, opened

_FOLDER = os.O_DIRECTORY | os.O_RDONLY | os.O_CLOEXEC
_NEW = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_PRIVATE = 0o600  # it names the command, whose arguments may be private


class FileAtEnd:
    """Where to write. `path` is to be hidden from the command. Raises ConfigError for what cannot be written.

    `in_use`: files of the run, none of which is to be replaced.
    """

    option = ""
    expected = ""
    keeps_mode = True  # of a file that is replaced

    def __init__(self, path: str, in_use: Iterable[str] = ()) -> None:
        self.path = path
        self._is_new = False
        self._mode = _PRIVATE
        self._identity: tuple[int, int] | None = None  # of the folder
        folder, slash, self._name = path.rpartition("/")
        self._folder = folder or ("/" if slash else ".")
        if self._name in ("", ".", ".."):
            raise self._refusal("not the name of a file")
        try:
            with self._opened() as place:
                found = os.fstat(place)
                self._identity = found.st_dev, found.st_ino
                self._prepare(place)
        except OSError as error:
            raise self._refusal(f"cannot be written: {error.strerror}") from None
        if any(_is_same(path, other) for other in in_use):
            self.discard()
            raise self._refusal("this run already uses it", "another file")

    def write(self, text: str) -> None:
        """Put the policy in place, whole or not at all. Raises StartError."""
        try:
            with self._opened() as place:
                self._replace(place, text)
        except OSError as error:
            raise StartError(f"{self.option} {self.path!r} cannot be written: {error.strerror}") from None
        self._is_new = False

    def discard(self) -> None:
        """Nothing came of the run: leave no empty file that was not there before. Not if it was written."""
        if not self._is_new:
            return
        self._is_new = False
        with suppress(OSError, StartError), self._opened() as place:  # else it is elsewhere, and not ours to remove
            found = look(self._name, place)
            if found is not None and stat.S_ISREG(found.st_mode) and found.st_size == 0:
                os.unlink(self._name, dir_fd=place)

    @contextmanager
    def _opened(self) -> Iterator[int]:
        """The folder, which must be the one that it was."""
        with opened(self._folder, _FOLDER) as place:
            found = os.fstat(place)
            if self._identity not in (None, (found.st_dev, found.st_ino)):
                raise StartError(f"{self.option} {self.path!r}: its folder was moved while the command ran")
            yield place

    def _prepare(self, place: int) -> None:
        found = look(self._name, place)
        if found is None:
            os.close(os.open(self._name, _NEW, _PRIVATE, dir_fd=place))
            self._is_new = True
            return
        if stat.S_ISLNK(found.st_mode):
            raise self._refusal("it is a symbolic link", "the file itself")
        if not stat.S_ISREG(found.st_mode):
            raise self._refusal("it is not a regular file")
        if found.st_uid != os.geteuid():
            raise self._refusal(f"it belongs to another user (uid {found.st_uid})")
        if self.keeps_mode:
            self._mode = stat.S_IMODE(found.st_mode) & 0o777
        # The file will be replaced by a new one, so the folder is what has to be writable.
        descriptor, name = _make_beside(place)
        os.close(descriptor)
        os.unlink(name, dir_fd=place)

    def _replace(self, place: int, text: str) -> None:
        descriptor, name = _make_beside(place)
        try:
            with open(descriptor, "wb") as file:
                file.write(text.encode("utf-8"))
                file.flush()
                os.fchmod(descriptor, self._mode)
                os.fsync(descriptor)
            # Replaces a link that the command may have put there, and never follows it.
            os.rename(name, self._name, src_dir_fd=place, dst_dir_fd=place)
        except BaseException:
            os.unlink(name, dir_fd=place)
            raise
        os.fsync(place)

    def _refusal(self, why: str, expected: str = "") -> ConfigError:
        return ConfigError(why, where=f"{self.option} {self.path}", expected=expected or self.expected)


class LearnOut(FileAtEnd):
    """For a learned policy."""

    option = "--learn-out"
    expected = "a file for the policy, such as learned.toml"

    def __init__(self, path: str, in_use: Iterable[str] = ()) -> None:
        if path.lower().endswith(".json"):
            self.path = path
            raise self._refusal("a learned policy has comments, and JSON has none", "learned.toml")
        super().__init__(path, in_use)


class SummaryOut(FileAtEnd):
    """For what the run came to."""

    option = "--summary-json"
    expected = "a file, such as summary.json"
    keeps_mode = False


def _is_same(path: str, other: str) -> bool:
    try:
        return os.path.samefile(path, other)
    except OSError:
        return False  # there is no such file


def _make_beside(place: int) -> tuple[int, str]:
    name = f".exeat-learn-{os.urandom(8).hex()}"
    return os.open(name, _NEW, _PRIVATE, dir_fd=place), name
