"""The layers that a sandbox keeps: `layers/000001/tree/<path>` in its folder, one for each run that wrote something.

A layer is never changed. A new one is made under another name, so what an interrupted run leaves is never taken for
one. A process that uses layers holds a shared lock on each; replacing or removing them needs an exclusive one.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Final, NamedTuple, Self

from exeat.errors import ExeatError
from exeat.paths import DIRECTORY, is_in, opened, using
from exeat.sandbox.files import locked, read_file, remove_tree, write_file
from exeat.sandbox.folder import LAYERS, SandboxFolder
from exeat.sandbox.home import make_folder, open_folder

TREE: Final = "tree"
BLOCK: Final = 4096  # that an entry takes at least
_FACTS: Final = "facts"
_LOCK: Final = ".lock"
_NUMBER: Final = re.compile(r"[0-9]{6,9}")
UNFINISHED: Final = ".new-"
_MAX_FACTS: Final = 4 << 20
_AT_ONCE: Final = 1 << 20
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Facts(NamedTuple):
    """What is known of a layer without a look at its files."""

    taken: int  # bytes on disk, about
    files: int
    began_ns: int  # when the run did
    hidden: tuple[str, ...]  # from the command, or from one of those whose layers were made this one
    always_hidden: tuple[str, ...] = ()  # from all of them

    def encoded(self) -> bytes:
        head = f"{self.taken} {self.files} {self.began_ns}"
        paths = (*self.hidden, "", *self.always_hidden)
        return b"\0".join((head.encode("ascii"), *map(os.fsencode, paths)))


def decoded(raw: bytes) -> Facts:
    """Raises ValueError."""
    head, *paths = map(os.fsdecode, raw.split(b"\0"))
    size, files, began = map(int, head.split())
    end = paths.index("") if "" in paths else len(paths)
    return Facts(size, files, began, tuple(paths[:end]), tuple(paths[end + 1 :]))


def kept_layers(folder: SandboxFolder) -> list[int]:
    """Descriptors of the trees, newest first. While one of them is open, anywhere, its layer stays as it is."""
    with turn(folder) as layers:
        if layers is None:
            return []
        _remove_unfinished(layers)
        return [tree for _, tree in open_trees(folder, layers)]


def layer_numbers(folder: SandboxFolder) -> list[int]:
    """Which layers there are, oldest first."""
    with _opened_layers(folder) as layers:
        return [] if layers is None else numbers(layers)


def kept_bytes(folder: SandboxFolder) -> int:
    return sum(facts.taken for facts in kept_facts(folder))


def kept_facts(folder: SandboxFolder) -> list[Facts]:
    """Of all layers, newest first."""
    with _opened_layers(folder) as layers:
        if layers is None:
            return []
        return [read_facts(folder, layers, number) for number in reversed(numbers(layers))]


def seen_before(trees: Iterable[int], paths: Sequence[str]) -> list[str]:
    """Of these paths, those that a layer has something at and that were not hidden from whoever wrote it.

    That may be a copy of what is outside. `trees` are those of `kept_layers`.
    """
    found: dict[str, None] = {}
    for tree in trees:
        with opened("..", within=tree) as layer:
            hidden = decoded(read_file(layer, _FACTS, _FACTS, _MAX_FACTS)).always_hidden
        for path in paths:
            if not is_in(path, hidden) and _has(tree, path):
                found[path] = None
    return list(found)


def _has(tree: int, path: str) -> bool:
    try:
        os.stat(path[1:], dir_fd=tree, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


class NewLayer:
    """A layer that is being made. Leaving it before `keep` removes it again; so does the next run, after a crash."""

    def __init__(self, folder: SandboxFolder, held: int | None = None) -> None:
        """`held`: the folder of layers, if it is our turn already."""
        self._folder = folder
        self._held = held
        make_folder(LAYERS, f"{folder.path}/{LAYERS}", folder.descriptor)
        self._name = ""

    def _turn(self) -> AbstractContextManager[int | None]:
        return turn(self._folder) if self._held is None else nullcontext(self._held)

    def __enter__(self) -> Self:
        with self._turn() as layers:
            assert layers is not None, "it was made"
            self._layers = os.dup(layers)
            self._name = _free_name(layers)
            os.mkdir(self._name, 0o700, dir_fd=layers)
            self._own = os.open(self._name, DIRECTORY, dir_fd=layers)
            fcntl.flock(self._own, fcntl.LOCK_EX | fcntl.LOCK_NB)  # a sign of life
            os.mkdir(TREE, 0o700, dir_fd=self._own)
            self.tree = os.open(TREE, DIRECTORY, dir_fd=self._own)
        return self

    def keep(self, facts: Facts) -> int:
        """Put it on top of all others. The number that it got."""
        path = f"{self._folder.path}/{LAYERS}"
        write_file(self._own, _FACTS, f".{_FACTS}", facts.encoded(), path)
        with self._turn() as layers:
            assert layers is not None, "it was made"
            number = max(numbers(layers), default=0) + 1
            os.rename(self._name, f"{number:06d}", src_dir_fd=layers, dst_dir_fd=layers)
            os.fsync(layers)
            self._name = ""
        return number

    def __exit__(self, *exception: object) -> None:
        os.close(self.tree)
        os.close(self._own)
        with using(self._layers):
            if self._name:
                remove_tree(self._layers, self._name)


def numbers(layers: int) -> list[int]:
    """Of all layers, oldest first."""
    return sorted(int(name) for name in os.listdir(layers) if _NUMBER.fullmatch(name))


def read_facts(folder: SandboxFolder, layers: int, number: int) -> Facts:
    path = f"{folder.path}/{LAYERS}/{number:06d}"
    with using(open_folder(f"{number:06d}", path, layers)) as within:
        try:
            return decoded(read_file(within, _FACTS, f"{path}/{_FACTS}", _MAX_FACTS))
        except (FileNotFoundError, ValueError):
            raise ExeatError(f"{path}: not a layer of exeat's (exeat files discard --name {folder.name})") from None


@contextmanager
def turn(folder: SandboxFolder) -> Iterator[int | None]:
    """One at a time: a descriptor of the folder of layers, None if there is none."""
    with _opened_layers(folder) as layers:
        if layers is None:
            yield None
            return
        with locked(layers, _LOCK, f"{folder.path}/{LAYERS}/{_LOCK}"):
            yield layers


def _opened_layers(folder: SandboxFolder) -> AbstractContextManager[int | None]:
    try:
        return using(open_folder(LAYERS, f"{folder.path}/{LAYERS}", folder.descriptor))
    except FileNotFoundError:
        return nullcontext()


def open_trees(folder: SandboxFolder, layers: int) -> list[tuple[int, int]]:
    """Numbers and descriptors of the trees, newest first, with a shared lock on each."""
    opened: list[tuple[int, int]] = []
    try:
        for number in reversed(numbers(layers)):
            name = f"{number:06d}/{TREE}"
            tree = open_folder(name, f"{folder.path}/{LAYERS}/{name}", layers)
            opened.append((number, tree))
            fcntl.flock(tree, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BaseException:
        for _, tree in opened:
            os.close(tree)
        raise
    return opened


def _free_name(layers: int) -> str:
    taken = os.listdir(layers)
    return next(name for at in range(len(taken) + 1) if (name := f"{UNFINISHED}{at}") not in taken)


def _remove_unfinished(layers: int) -> None:
    """What runs have left that died while they kept their layer. One that still writes holds its lock."""
    for name in os.listdir(layers):
        if not name.startswith(UNFINISHED):
            continue
        with opened(name, within=layers) as unfinished, suppress(BlockingIOError):
            fcntl.flock(unfinished, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove_tree(layers, name)


class LayerTree:
    """A tree that is being filled, and what is in it so far.

    While they are filled, its folders are open to their owner alone. What they are to be like in the end is remembered.
    """

    def __init__(self, tree: int) -> None:
        self._tree = tree
        self._folders: list[tuple[str, int, int, int, int]] = []
        self._as_root = os.geteuid() == 0
        self.files = self.bytes = 0
        self.has_new_folder = False

    def remember(self, path: str, found: os.stat_result) -> None:
        """A folder of the tree, and the one that it is to be like."""
        self._folders.append((path, found.st_mode, found.st_uid, found.st_gid, found.st_mtime_ns))
        self.has_new_folder = self.has_new_folder or not os.path.lexists(path)

    def finish(self) -> None:
        for path, mode, uid, gid, mtime_ns in reversed(self._folders):
            with opened(path[1:], within=self._tree) as folder:
                if self._as_root:
                    os.fchown(folder, uid, gid)
                # Those who look at the layer later are its owner, and have to get into every folder.
                os.fchmod(folder, mode & 0o1777 | 0o700)
                os.utime(folder, ns=(mtime_ns, mtime_ns))


def copy_file(
    source: int, within: int, name: str, found: os.stat_result, mode: int, took: Callable[[int], None] | None = None
) -> None:
    """Make a new file with content, times and, for root, the owner of another; and with this mode. It is on the way to
    the disk then, not there. What is left after an error is the caller's to remove."""
    with using(os.open(name, _NEW, 0o600, dir_fd=within)) as target:
        _copy_content(source, target, found.st_size, took)
        if os.geteuid() == 0:
            os.fchown(target, found.st_uid, found.st_gid)
        os.fchmod(target, mode)  # after the owner, whose change takes some of it away
        os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))


def _copy_content(source: int, target: int, size: int, took: Callable[[int], None] | None) -> None:
    """Into an empty file. `took` is told of every piece, and may stop it. A file of a terabyte may have no data."""
    os.ftruncate(target, size)
    at = 0
    while at < size:
        try:
            start = os.lseek(source, at, os.SEEK_DATA)
        except OSError:  # ENXIO: nothing but a hole follows
            return
        at = min(os.lseek(source, start, os.SEEK_HOLE), size)
        os.lseek(target, start, os.SEEK_SET)
        while start < at:
            done = os.sendfile(target, source, start, min(at - start, _AT_ONCE))
            if not done:
                return
            start += done
            if took is not None:
                took(done)
