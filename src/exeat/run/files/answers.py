"""What the machine answered while it was looked at, and whether it would answer the same now.

Decisions on files follow from these answers, the variables that were read, and nothing else. As long as all of them are
the same, so are the decisions. So to ask again is as strict as to decide again. It takes 1 ms instead of 3: most
questions were asked several times, and what is between them takes longer than they do.

While it listens, functions of `os` are others, so there must be one thread. What was asked in a way that cannot be
repeated, changed something, or was answered in two ways makes it useless: `are_the_same` is false from then on.

What is noted is what was answered. To ask twice, once for the note, would leave others time to change it in between.
"""

from __future__ import annotations

import builtins
import io
import os
import pwd
import stat
from collections.abc import Callable, Mapping
from hashlib import blake2b
from itertools import islice
from typing import Any, Final, Self

from exeat.run.files.answered import FILE, FOLDER, LINK, OTHER, Listed, Seen, SeenFolder, SeenSystem

_PART: Final = 1 << 14
_MOST_BYTES: Final = 1 << 20  # of a file that was read
_MOST_NAMES: Final = 5_000  # in a folder: to list more takes longer than to decide again
_MOST_ANSWERS: Final = 50_000  # names in folders included: who works in a project decides how many there are
_NO_FILE: Final = -1  # or too long, or an error without a number
_READ: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_LOOK_AT: Final = os.O_PATH | os.O_CLOEXEC
_CHANGES: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_DESCRIPTORS: Final = "/proc/self/fd/"
_NOT_REPEATED: Final = (
    (os, ("mkdir", "makedirs", "rename", "replace", "unlink", "rmdir", "symlink", "link", "chdir", "fork")),
    (pwd, ("getpwuid", "getpwnam", "getpwall")),
)
_open, _plain_open, _scandir = os.open, builtins.open, os.scandir
_stat, _lstat, _statvfs = os.stat, os.lstat, os.statvfs


class Answers:
    """`with Answers() as answers:` look at files. After that `are_the_same` asks again."""

    def __init__(self) -> None:
        self._is_whole = True
        self._count = 0
        self._folder = _here()
        # By path. Instead of an answer there can be the number of an error.
        self._stats: dict[str, object] = {}
        self._lstats: dict[str, object] = {}
        self._contents: dict[str, bytes | int] = {}
        self._listed: dict[str, Listed | int] = {}
        self._calls: dict[tuple[Callable[..., object], str, tuple[Any, ...]], object] = {}
        self._variables: dict[str, str | None] = {}
        self._paths: dict[int, str] = {}  # by which descriptors were opened
        self._others: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> Self:
        for module, names in _NOT_REPEATED:
            for name in names:
                self._put(module, name, self._giving_up(getattr(module, name)))
        ask_flags = self._asking(_flags)
        for name, function in (
            ("stat", self._stat), ("lstat", self._lstat), ("scandir", self._scandir), ("listdir", self._listdir),
            ("open", self._open), ("access", self._asking(os.access)), ("readlink", self._asking(os.readlink)),
            ("statvfs", lambda path: SeenSystem(ask_flags(path))),
            ("environ", _Variables(os.environ, self._variables)),
        ):  # fmt: skip
            self._put(os, name, function)
        for module in (builtins, io):
            self._put(module, "open", self._plain_open)
        return self

    def __exit__(self, *_: object) -> None:
        for module, name, other in reversed(self._others):
            setattr(module, name, other)
        self._others.clear()
        self._paths.clear()

    def _put(self, module: Any, name: str, value: object) -> None:
        self._others.append((module, name, getattr(module, name)))
        setattr(module, name, value)

    def are_the_same(self) -> bool:
        """Would all be answered as it was? Not to be asked while it listens."""
        environ = os.environ
        return (
            self._is_whole
            and _here() == self._folder
            and all(environ.get(name) == value for name, value in self._variables.items())
            and all(_look(_lstat, path) == answer for path, answer in self._lstats.items())
            and all(_look(_stat, path) == answer for path, answer in self._stats.items())
            and all(_call(function, path, more) == answer for (function, path, more), answer in self._calls.items())
            and all(_content(path) == content for path, content in self._contents.items())
            and all(_is_still(path, listed) for path, listed in self._listed.items())
        )

    # While it listens

    def _note(self, known: dict[Any, Any], asked: Any, answer: object, size: int = 1) -> None:
        self._count += size
        if self._count > _MOST_ANSWERS or known.setdefault(asked, answer) != answer:
            self._is_whole = False
        if not self._is_whole:  # and never will be: it need not take memory
            for each in (self._stats, self._lstats, self._contents, self._listed, self._calls):
                each.clear()

    def _stat(self, path: Any, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> Seen:
        if not isinstance(path, str) or dir_fd is not None:
            self._is_whole = False
            return Seen(_stat(path, dir_fd=dir_fd, follow_symlinks=follow_symlinks))
        known, function = (self._stats, _stat) if follow_symlinks else (self._lstats, _lstat)
        try:
            found = function(path)
        except OSError as error:
            self._note(known, path, error.errno)
            raise
        self._note(known, path, _identity(found))
        return Seen(found)

    def _lstat(self, path: Any, *, dir_fd: int | None = None) -> Seen:
        return self._stat(path, dir_fd=dir_fd, follow_symlinks=False)

    def _asking(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def ask(path: Any, *more: Any, **named: Any) -> Any:
            self._is_whole &= isinstance(path, str) and not named
            try:
                answer = function(path, *more, **named)
            except OSError as error:
                self._note(self._calls, (function, path, more), ("error", error.errno))
                raise
            self._note(self._calls, (function, path, more), answer)
            return answer

        return ask

    def _giving_up(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def do(*arguments: Any, **named: Any) -> Any:
            self._is_whole = False
            return function(*arguments, **named)

        return do

    def _scandir(self, path: Any = ".") -> Any:
        kinds = _kinds(path, _MOST_NAMES + 1)
        if isinstance(kinds, int):
            self._is_whole &= isinstance(path, str)
            self._note(self._listed, path, kinds)
            raise OSError(kinds, os.strerror(kinds), path)
        if not isinstance(path, str) or len(kinds) > _MOST_NAMES:
            self._is_whole = False
            return _scandir(path)
        listed = self._listed.get(path)
        if not isinstance(listed, Listed) or listed.kinds != kinds:
            listed = Listed(kinds)
        self._note(self._listed, path, listed, len(kinds))
        return SeenFolder(path, listed)

    def _listdir(self, path: str = ".") -> list[str]:
        with self._scandir(path) as entries:
            return [each.name for each in entries]

    def _open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if not isinstance(path, str) or dir_fd is not None or flags & _CHANGES:
            self._is_whole = False
            return _open(path, flags, mode, dir_fd=dir_fd)
        place: str | None = path
        if path.startswith(_DESCRIPTORS):  # one that was opened only to be looked at, and is read after that
            number = path.removeprefix(_DESCRIPTORS)
            place = self._paths.get(int(number)) if number.isdecimal() else None
        if place is None:
            self._is_whole = False
            return _open(path, flags, mode)
        known = self._lstats if flags & os.O_NOFOLLOW else self._stats
        is_read = not flags & (os.O_PATH | os.O_DIRECTORY)
        try:
            descriptor = _open(path, flags, mode)
        except OSError as error:
            self._note(self._contents if is_read else known, place, error.errno)
            raise
        if place == path:
            self._note(known, path, _identity(os.fstat(descriptor)))
        if is_read:
            descriptor = self._copied(place, descriptor)
        self._paths[descriptor] = place
        return descriptor

    def _plain_open(self, file: Any, mode: str = "r", *arguments: Any, **named: Any) -> Any:
        if isinstance(file, int):
            return _plain_open(file, mode, *arguments, **named)
        if not isinstance(file, str) or {*mode} & {*"wax+"}:
            self._is_whole = False
            return _plain_open(file, mode, *arguments, **named)
        try:
            descriptor = _open(file, _READ)
        except OSError as error:
            self._note(self._contents, file, error.errno)
            raise
        return _plain_open(self._copied(file, descriptor), mode, *arguments, **named)

    def _copied(self, path: str, descriptor: int) -> int:
        """Instead of it, a file with the content that was noted: others may write to this one."""
        copy = os.memfd_create("read", os.MFD_CLOEXEC)
        content = _digest(descriptor, copy)
        if isinstance(content, int):
            self._is_whole = False
            os.close(copy)
            return descriptor
        self._note(self._contents, path, content)
        os.close(descriptor)
        os.lseek(copy, 0, os.SEEK_SET)
        return copy


class _Variables(dict[str, str]):
    """Instead of `os.environ`. Notes what is asked for, and not what is only listed."""

    def __init__(self, environ: Mapping[str, str], asked: dict[str, str | None]) -> None:
        super().__init__(environ)
        self._asked = asked

    def __getitem__(self, name: str) -> str:
        self._asked[name] = super().get(name)
        return super().__getitem__(name)

    def get(self, name: str, instead: Any = None) -> Any:
        self._asked[name] = super().get(name)
        return super().get(name, instead)

    def __contains__(self, name: object) -> bool:
        self._asked[str(name)] = super().get(str(name))
        return super().__contains__(name)


def _here() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""


def _identity(found: os.stat_result) -> tuple[int, ...]:
    seen = found[:6]
    return (*seen[:3], *seen[4:]) if stat.S_ISDIR(seen[0]) else (*seen, found.st_rdev)


def _look(function: Callable[[str], os.stat_result], path: str) -> tuple[int, ...] | int | None:
    try:
        return _identity(function(path))
    except OSError as error:
        return error.errno


def _call(function: Callable[..., object], path: str, more: tuple[Any, ...]) -> object:
    try:
        return function(path, *more)
    except OSError as error:
        return ("error", error.errno)


def _flags(path: str) -> int:
    return _statvfs(path).f_flag


def _content(path: str) -> bytes | int:
    """What stands for it, or the number of an error. Nothing but a plain file is opened: others may change what it is.

    For a device, to be opened may mean to start.
    """
    try:
        handle = _open(path, _LOOK_AT)
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                return _NO_FILE
            descriptor = _open(f"{_DESCRIPTORS}{handle}", _READ)
        finally:
            os.close(handle)
    except OSError as error:
        return error.errno or _NO_FILE
    try:
        return _digest(descriptor)
    finally:
        os.close(descriptor)


def _digest(descriptor: int, copy: int = -1) -> bytes | int:
    """Of a file's content, which goes to `copy` as well.

    There may be keys in it, and the processes of a jail are forks of this one. So nothing of it stays in memory.
    """
    part, hashed, count = bytearray(_PART), blake2b(), 0
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return _NO_FILE
        with memoryview(part) as view:
            while length := os.preadv(descriptor, [view], count):
                hashed.update(view[:length])
                count += length
                if count > _MOST_BYTES:
                    return _NO_FILE
                if copy >= 0:
                    os.write(copy, view[:length])
        return hashed.digest()
    except OSError as error:
        return error.errno or _NO_FILE
    finally:
        part[:] = bytes(_PART)


def _kinds(path: str, most: int | None = None) -> dict[str, str] | int:
    """What is in a folder, or the number of an error."""
    try:
        with _scandir(path) as entries:
            return {each.name: _kind(each) for each in islice(entries, most)}
    except OSError as error:
        return error.errno or _NO_FILE


def _kind(entry: os.DirEntry[str]) -> str:
    if entry.is_file(follow_symlinks=False):
        return FILE
    if entry.is_dir(follow_symlinks=False):
        return FOLDER
    return LINK if entry.is_symlink() else OTHER


def _is_still(path: str, listed: Listed | int) -> bool:
    now = _kinds(path, _MOST_NAMES + 1)
    return now == listed if isinstance(listed, int) or isinstance(now, int) else listed.is_like(now)
