"""Files in a shared folder that programs outside run by themselves: git's hooks and settings, editors, agents.

A command that may change these is out of the jail as soon as its user types `git status` or opens the folder. So what
is there is to be read-only, and what is not there must not come into being. Files that people start by hand and change
all day (Makefile, package.json, scripts) are not among them.

Found at the top of the folder, in its git repository with submodules and other work trees, and in repositories one
level below. Nothing is followed that the command could have written, and nothing is changed here.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from exeat.files.project.git_folder import GitFolder, find_git_folder, read_settings
from exeat.paths import is_below, is_inside, place_of

# At the top of the folder. Settings of editors and agents: each has tasks, hooks, servers or commands to be started.
NAMES: Final = (
    ".claude", ".codex", ".cursor", ".envrc", ".fleet", ".gemini", ".husky", ".idea", ".kiro", ".mcp.json", ".opencode",
    ".vscode", ".windsurf", ".zed", "opencode.json", "opencode.jsonc",
)  # fmt: skip
MAX_REPOSITORIES: Final = 100


class Protected(NamedTuple):
    """In one shared folder. Full paths without links on the way; what is held can be a link itself."""

    held: tuple[str, ...]  # there, and to be read-only
    absent: tuple[str, ...]  # not there, and not to be made
    fatal: tuple[str, ...]  # the same; no honest program makes one
    left_out: tuple[str, ...] = ()  # repositories that are too many


def find_protected(root: str, *, writable: Collection[str] = (), home: str = "") -> Protected:
    """In a folder that is shared for real. `writable`: paths that were named to be changed. `home` has git's settings.

    Raises OSError if the folder cannot be read.
    """
    root = os.path.realpath(root)
    found = _Found(root, {each for path in writable for each in (os.path.abspath(path), os.path.realpath(path))})
    if not os.path.isdir(root):
        return found.result()
    with os.scandir(root) as entries:
        folders = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    for name in NAMES:
        found.add(f"{root}/{name}")
    hooks = _hooks_of_user(home)
    for place in (root, *(f"{root}/{name}" for name in folders if name != ".git")):
        found.add_repository(place, hooks)
    return found.result()


class _Found:
    def __init__(self, root: str, writable: set[str]) -> None:
        self._root = root
        self._writable = writable
        self._held: dict[str, None] = {}  # in order, and each once
        self._absent: dict[str, None] = {}
        self._fatal: dict[str, None] = {}
        self._left_out: list[str] = []
        self._repositories: set[str] = set()

    def result(self) -> Protected:
        return Protected(tuple(self._held), tuple(self._absent), tuple(self._fatal), tuple(self._left_out))

    def add(self, path: str) -> None:
        """A path that is to stay what it is, and where it leads, as far as that is in the folder."""
        for _ in range(40):  # links, as the kernel follows them
            path = place_of(path)
            if not is_inside(path, self._root) or path in self._writable:
                return
            if not os.path.lexists(path):
                while not os.path.lexists(os.path.dirname(path)):
                    path = os.path.dirname(path)  # of more that is not there, the first
                if os.path.isdir(os.path.dirname(path)):
                    self._absent[path] = None
                return
            self._held[path] = None
            if not os.path.islink(path):
                return
            path = os.path.join(os.path.dirname(path), os.readlink(path))

    def add_repository(self, place: str, hooks: Iterable[str] = ()) -> None:
        """The git repository of a work tree, or that is this folder."""
        git = find_git_folder(place)
        if git is None:
            return
        if len(self._repositories) >= MAX_REPOSITORIES:
            self._left_out.append(place)
            return
        if os.path.lexists(f"{place}/.git"):
            self._add_way_to_git(f"{place}/.git")
        self._add_git_folder(git)
        for path in (*git.hooks_paths, *hooks):
            self.add(os.path.join(place, path))

    def _add_way_to_git(self, path: str) -> None:
        """A file that says where the folder is, or a link to it. The folder itself is written all the time."""
        if os.path.islink(path) or not os.path.isdir(path):
            self._held[path] = None

    def _add_git_folder(self, git: GitFolder) -> None:
        if git.path in self._repositories or not is_below(git.path, self._root):
            return
        self._repositories.add(git.path)
        for name in ("config", "config.worktree", "hooks"):
            self.add(f"{git.path}/{name}")
        for path in git.included:
            self.add(path)
        self._add_common(f"{git.path}/commondir")
        for tree in git.work_trees():
            for name in ("config.worktree", "gitdir"):
                self.add(f"{tree}/{name}")
            self._add_common(f"{tree}/commondir")
        for module in git.modules():
            if len(self._repositories) >= MAX_REPOSITORIES:
                self._left_out.append(module.path)
                continue
            self._add_git_folder(module)
            if module.work_tree and os.path.isfile(f"{module.work_tree}/.git"):
                self.add(f"{module.work_tree}/.git")
            for path in module.hooks_paths:
                self.add(os.path.join(module.work_tree or module.path, path))

    def _add_common(self, path: str) -> None:
        """With such a file git takes its settings from wherever it says. No program makes one in a folder of git's."""
        if os.path.lexists(path):
            self.add(path)
        elif path not in self._writable:
            self._fatal[path] = None


def _hooks_of_user(home: str) -> list[str]:
    """Where the user has git look for hooks in every work tree."""
    if not home:
        return []
    settings = [read_settings(f"{home}/{name}") for name in (".gitconfig", ".config/git/config")]
    paths = (path for each in settings for path in each.get("hookspath", ()))
    return [path for path in paths if not path.startswith(("/", "~"))]
