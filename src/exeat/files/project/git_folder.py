"""A git folder on disk: which one belongs to a work tree, its settings, its submodules.

Read here and never by git itself, which would do what a hostile repository says.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import Final

from exeat.paths import opened

_MAX_SETTINGS: Final = 1 << 20
_HARMLESS: Final = {
    "core": (
        "bare", "filemode", "ignorecase", "logallrefupdates", "precomposeunicode", "repositoryformatversion",
        "symlinks", "worktree",
    ),
    "remote": ("fetch", "url"),
    "branch": ("merge", "rebase", "remote"),
    "submodule": ("active", "url"),
    "user": ("email", "name"),
    "extensions": ("objectformat", "refstorage"),
}  # fmt: skip
_UNREAD: Final = b"\n[unread]\nunread\n"  # stands for what there is more of: no setting that is known
_LEADS_TO: Final = "gitdir: "
_MAX_FILES: Final = 50  # with settings, of one repository
_MAX_DEPTH: Final = 8  # of folders in `modules`: names of submodules have slashes


class GitFolder:
    """`path` is without links."""

    __slots__ = ("_settings", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self._settings = read_settings(f"{path}/config")

    @property
    def hooks_paths(self) -> list[str]:
        """Other folders for hooks. What is not a full path begins at the top of the work tree."""
        return [os.path.expanduser(path) for _, each in self._all_settings() for path in each.get("hookspath", ())]

    @property
    def included(self) -> list[str]:
        """Other files with settings."""
        return [file for file, _ in self._all_settings()[2:]]

    def _all_settings(self) -> list[tuple[str, dict[str, list[str]]]]:
        """Its own two files, and those that they include, and so on."""
        files = [f"{self.path}/config", f"{self.path}/config.worktree"]
        found, seen = [], set(files)
        for file in files:
            found.append((file, read_settings(file)))
            for path in found[-1][1].get("include", ()):
                other = os.path.join(os.path.dirname(file), os.path.expanduser(path))
                if os.path.realpath(other) not in seen and len(files) < _MAX_FILES:
                    seen.add(os.path.realpath(other))
                    files.append(other)
        return found

    @property
    def work_tree(self) -> str:
        """Of a submodule: where its files are. "" if it does not say."""
        path = self._settings.get("worktree", [""])[-1]
        return os.path.realpath(os.path.join(self.path, path)) if path else ""

    def work_trees(self) -> list[str]:
        """Folders that stand for other work trees of the repository."""
        return folders_in(f"{self.path}/worktrees")

    def modules(self) -> Iterator[GitFolder]:
        """Submodules of this repository; theirs are their own."""
        yield from _modules(f"{self.path}/modules", _MAX_DEPTH)

    @property
    def common(self) -> str:
        """The repository that this is a work tree of; itself if it is one."""
        to = _pointer(f"{self.path}/commondir")
        return os.path.realpath(os.path.join(self.path, to)) if to else self.path

    def knows(self, place: str) -> bool:
        """Does it say itself that its work tree is there? What a `.git` file says was perhaps written by a stranger."""
        back = _pointer(f"{self.path}/gitdir")
        if back:
            return os.path.realpath(os.path.join(self.path, back)) == os.path.realpath(f"{place}/.git")
        return self.work_tree == os.path.realpath(place)


def find_git_folder(place: str) -> GitFolder | None:
    """Of the work tree of which this is the top, or the folder itself if it is one of git's."""
    path = f"{place}/.git"
    if os.path.isfile(path):
        line = _pointer(path)
        path = os.path.join(place, line.removeprefix(_LEADS_TO)) if line.startswith(_LEADS_TO) else ""
    elif not os.path.isdir(path):
        path = place
    if not path or not is_git_folder(path):
        return None
    return GitFolder(os.path.realpath(path))


def is_git_folder(path: str) -> bool:
    """As git sees it, but for what HEAD says."""
    if not os.path.lexists(f"{path}/HEAD"):
        return False
    is_whole = os.path.isdir(f"{path}/objects") and os.path.isdir(f"{path}/refs")
    return is_whole or os.path.isfile(f"{path}/commondir")


def starts_no_program(git: GitFolder) -> bool:
    """Is there nothing in its settings and hooks but what `git init` and `git clone` write?"""
    try:
        hooks = os.listdir(f"{git.path}/hooks")
    except FileNotFoundError:
        hooks = []
    except OSError:
        return False
    if os.path.lexists(f"{git.path}/config.worktree") or not all(name.endswith(".sample") for name in hooks):
        return False
    if git.common != git.path:
        return False  # its settings are somewhere else
    settings = _settings_in(f"{git.path}/config")
    return all(key in _HARMLESS.get(section.partition(" ")[0].lower(), ()) for section, key, _ in settings)


def read_settings(path: str) -> dict[str, list[str]]:
    """What matters here of a file with git's settings: `hookspath`, `worktree`, and `include` for other files."""
    found: dict[str, list[str]] = {}
    for section, key, value in _settings_in(path):
        kind = section.strip().lower()
        if value is not None and key == "path" and kind.startswith("include"):
            found.setdefault("include", []).append(_unquoted(value))
        elif value is not None and key in ("hookspath", "worktree") and kind == "core":
            found.setdefault(key, []).append(_unquoted(value))
    return found


def _settings_in(path: str) -> Iterator[tuple[str, str, str | None]]:
    """The section, as it is written, the key, and the value if it has one."""
    section = ""
    for line in map(str.strip, _text(path).split("\n")):
        setting = line
        if line.startswith("["):
            section, _, setting = line[1:].partition("]")
        if setting.strip() and not line.startswith(("#", ";")):
            key, equals, value = setting.partition("=")
            yield section, key.strip().lower(), value.strip() if equals else None


def _unquoted(value: str) -> str:
    if value.startswith('"'):
        return value[1:].partition('"')[0]
    return value.partition(" #")[0].partition(" ;")[0].strip()


def _modules(folder: str, depth: int) -> Iterator[GitFolder]:
    for path in folders_in(folder):
        if is_git_folder(path):
            yield GitFolder(os.path.realpath(path))
        elif depth:
            yield from _modules(path, depth - 1)


def folders_in(path: str) -> list[str]:
    """In a folder, without links."""
    try:
        with os.scandir(path) as entries:
            return sorted(entry.path for entry in entries if entry.is_dir(follow_symlinks=False))
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []


def _pointer(path: str) -> str:
    """A path in a file of git's, as git reads it: all that is there, other lines and spaces included."""
    return _text(path).rstrip("\r\n")


def _text(path: str) -> str:
    """Of a plain file that can be read; "" otherwise. Nothing else is opened: a link may lead to a device."""
    try:
        with opened(path, os.O_PATH | os.O_CLOEXEC) as handle:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                return ""
            with opened(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC) as descriptor:
                text = os.read(descriptor, _MAX_SETTINGS).replace(b"\0", b"\n")  # where git's values end, too
    except (OSError, ValueError):
        return ""
    return os.fsdecode(text if len(text) < _MAX_SETTINGS else text + _UNREAD)
