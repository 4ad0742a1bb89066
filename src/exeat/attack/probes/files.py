"""Files outside of the project: what is left in them runs later, outside of every jail (M1).

The working directory is a project in a home of ours. A token in any other file, or in a file of the project from which
editors, git or agents start programs of themselves, has got out.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from exeat.attack.model import BOUNDARIES, Absent, Group, Scene, Stopped
from exeat.attack.moves import left_open
from exeat.attack.outside.belongings import OPEN, PACKAGES, STARTS, SYSTEM, name_in_system
from exeat.jail import libc

GROUP = Group("files", "files: what stays, keys, layers, host sockets", BOUNDARIES)
_HERE = -100  # AT_FDCWD
_FOLLOW = 0x400  # AT_SYMLINK_FOLLOW

# Where something that is left runs later: in the home, by what starts it.
_STARTS = {
    "bashrc": (".bashrc", "a shell's start file"),
    "profile": (".profile", "the login shell's start file"),
    "zshenv": (".zshenv", "a start file that was not there (zsh)"),
    "fish": (".config/fish/config.fish", "fish's start file"),
    "unit": (".config/systemd/user/backup.service", "a unit of the user's systemd"),
    "unit-new": (".config/systemd/user/default.target.wants/new.service", "a new unit that is wanted at login"),
    "autostart": (".config/autostart/new.desktop", "a program that the desktop starts"),
    "environment": (".config/environment.d/new.conf", "variables of the session"),
    "authorized-keys": (".ssh/authorized_keys", "a key that may log in"),
    "ssh-config": (".ssh/config", "ssh's settings (ProxyCommand)"),
    "ssh-rc": (".ssh/rc", "what sshd starts at login"),
    "gitconfig": (".gitconfig", "git's settings (aliases, hooks, pager)"),
    "path": (".local/bin/ls", "a program in a folder of PATH"),
    "tool": (".local/bin/tool", "a program that is there, replaced"),
    "pth": (f"{PACKAGES}/new.pth", "a .pth file, which every Python runs"),
    "usercustomize": (f"{PACKAGES}/usercustomize.py", "usercustomize, which every Python imports"),
    "npmrc": (".npmrc", "npm's settings (script-shell)"),
    "pip": (".config/pip/pip.conf", "pip's settings (index-url)"),
    "cargo": (".cargo/config.toml", "cargo's settings (rustc-wrapper)"),
    "vimrc": (".vimrc", "vim's start file"),
    "editor": (".config/Code/User/tasks.json", "an editor's tasks of the user"),
    "agent": (".claude/settings.json", "an agent's hooks of the user"),
    "guest": ("guest/.profile", "another home"),
}
# In the project, of which the rest may be changed.
_IN_PROJECT = {
    "hook": (".git/hooks/pre-commit", "a git hook"),
    "hook-new": (".git/hooks/post-checkout", "a new git hook"),
    "git-config": (".git/config", "the repository's settings (core.fsmonitor)"),
    "submodule": (".git/modules/sub/config", "a submodule's settings"),
    "submodule-hook": (".git/modules/sub/hooks/post-merge", "a submodule's hook"),
    "envrc": (".envrc", "direnv's file"),
    "vscode": (".vscode/tasks.json", "an editor's tasks"),
    "idea": (".idea/workspace.xml", "another editor's tasks"),
    "mcp": (".mcp.json", "servers that an agent starts"),
    "claude": (".claude/settings.json", "an agent's hooks"),
    "husky": (".husky/pre-commit", "husky's hook"),
    "new-cursor": (".cursor/mcp.json", "an agent's settings that were not there"),
}


def home(scene: Scene, path: str) -> Path:
    return Path(scene.home, path)


def start(scene: Scene, way: str) -> Path:
    """The start file for one way to get at it."""
    return home(scene, f"{STARTS}/{way}")


def own(scene: Scene, name: str = "") -> Path:
    """In the project, where a probe may leave things. The token makes it a name of its own."""
    return Path(scene.home, "project", OPEN, f"{name}-{scene.token}" if name else "")


def line(scene: Scene) -> str:
    return f"# {scene.token}\n"


def _append(scene: Scene, path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(line(scene))
    return "written, as far as this process can tell"


def _add(key: str, path: str, title: str) -> None:
    GROUP.probe(f"M1.{key}", title)(lambda scene: _append(scene, home(scene, path)))


for _key, (_path, _title) in _STARTS.items():
    _add(_key, _path, _title)
for _key, (_path, _title) in _IN_PROJECT.items():
    _add(_key, f"project/{_path}", _title)


def _add_system(key: str, folder: str) -> None:
    @GROUP.probe(f"M1.system-{key}", f"a file in {folder}")
    def leave(scene: Scene) -> str:
        if not Path(folder).is_dir():
            raise Absent(f"no {folder}")
        Path(folder, name_in_system(scene.token)).write_text(line(scene))
        return "written, as far as this process can tell"


for _key, _path in SYSTEM.items():
    _add_system(_key, _path)


# Other ways to the same file


def exchange(old: Path, new: Path) -> None:
    """Two files or folders, each under the name of the other (renameat2)."""
    libc.call("renameat2", _HERE, bytes(old), _HERE, bytes(new), 2)


@GROUP.probe("M1.replaced", "a start file replaced by renaming another over it")
def replaced(scene: Scene) -> str:
    other = start(scene, f".new-{scene.token}")
    other.write_text(line(scene))
    other.rename(start(scene, "replaced"))
    return "renamed"


@GROUP.probe("M1.exchanged", "a start file exchanged with a file of the project (renameat2)")
def exchanged(scene: Scene) -> str:
    own(scene, "exchange").write_text(line(scene))
    exchange(own(scene, "exchange"), start(scene, "exchanged"))
    return "exchanged"


@GROUP.probe("M1.exchanged-there", "a start file exchanged with one next to it (renameat2)")
def exchanged_there(scene: Scene) -> str:
    other = start(scene, ".other")
    _append(scene, other)
    exchange(other, start(scene, "exchanged-there"))
    return "exchanged"


@GROUP.probe("M1.moved-out", "a file of the project renamed to a start file")
def moved_out(scene: Scene) -> str:
    own(scene, "move").write_text(line(scene))
    own(scene, "move").rename(home(scene, ".zprofile"))
    return "renamed"


@GROUP.probe("M1.hardlink-out", "a hard link to a start file, written by")
def hardlink_out(scene: Scene) -> str:
    os.link(start(scene, "hardlink"), own(scene, "hard"))
    return _append(scene, own(scene, "hard"))


@GROUP.probe("M1.hardlink-in", "a file of the project linked to where programs start")
def hardlink_in(scene: Scene) -> str:
    own(scene, "source").write_text(line(scene))
    os.link(own(scene, "source"), home(scene, ".config/autostart/linked.desktop"))
    return "linked"


@GROUP.probe("M1.symlink", "a start file through a link in the project")
def symlink(scene: Scene) -> str:
    own(scene, "soft").symlink_to(start(scene, "symlink"))
    return _append(scene, own(scene, "soft"))


@GROUP.probe("M1.symlink-before", "a start file through a link that was there")
def symlink_before(scene: Scene) -> str:
    return _append(scene, own(scene) / "to-home" / STARTS / "symlink-before")


def _link_nameless(scene: Scene, folder: Path, path: str) -> str:
    descriptor = os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o644)
    os.write(descriptor, line(scene).encode())
    libc.call("linkat", _HERE, f"/proc/self/fd/{descriptor}", _HERE, bytes(home(scene, path)), _FOLLOW)
    return "linked"


@GROUP.probe("M1.tmpfile", "a file without a name that gets one in the home (O_TMPFILE, linkat)")
def tmpfile(scene: Scene) -> str:
    return _link_nameless(scene, home(scene, ""), ".config/systemd/user/late.service")


@GROUP.probe("M1.tmpfile-project", "a file without a name of the project, linked into the home")
def tmpfile_project(scene: Scene) -> str:
    return _link_nameless(scene, own(scene), ".config/autostart/late.desktop")


@GROUP.probe("M1.mapped", "a start file changed in memory (mmap)")
def mapped(scene: Scene) -> str:
    with start(scene, "mapped").open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        memory[: len(line(scene))] = line(scene).encode()
        memory.flush()
    return "written"


@GROUP.probe("M1.copied", "a start file filled by the kernel (copy_file_range)")
def copied(scene: Scene) -> str:
    own(scene, "copy").write_text(line(scene))
    with own(scene, "copy").open("rb") as source, start(scene, "copied").open("r+b") as target:
        os.copy_file_range(source.fileno(), target.fileno(), len(line(scene)))
    return "copied"


def ways(kind: str) -> Iterator[str]:
    """/proc/*/root or the like, of every process that is shown."""
    for entry in listed("/proc"):
        if entry.isdecimal() or entry in {"self", "thread-self"}:
            yield f"/proc/{entry}/{kind}"
            for task in listed(f"/proc/{entry}/task"):
                yield f"/proc/{entry}/task/{task}/{kind}"


def listed(folder: str) -> list[str]:
    """The names in a folder, if this process may know them."""
    try:
        return sorted(entry.name for entry in Path(folder).iterdir())
    except OSError:
        return []


def _append_by(scene: Scene, paths: list[Path]) -> str:
    """Each of them is tried."""
    done = 0
    for path in paths:
        with contextlib.suppress(OSError), path.open("a") as file:
            done += file.write(line(scene)) > 0
    if not done:
        raise Stopped(f"none of {len(paths)} ways leads anywhere")
    return f"{done} of {len(paths)} ways can be written to, as far as this process can tell"


@GROUP.probe("M1.proc-root", "a start file by the root of every process (/proc/*/root)")
def proc_root(scene: Scene) -> str:
    return _append_by(scene, [Path(f"{way}{start(scene, 'root')}") for way in ways("root")])


@GROUP.probe("M1.proc-cwd", "a start file by the working directory of every process (/proc/*/cwd)")
def proc_cwd(scene: Scene) -> str:
    return _append_by(scene, [Path(f"{way}/../{STARTS}/cwd") for way in ways("cwd")])


@GROUP.probe("M1.dotdot", "a start file from the project upwards, by descriptor")
def dotdot(scene: Scene) -> str:
    os.chdir(own(scene))
    project = os.open("..", os.O_RDONLY | os.O_DIRECTORY)
    descriptor = os.open(f"../{STARTS}/dotdot", os.O_WRONLY | os.O_APPEND, dir_fd=project)
    os.write(descriptor, line(scene).encode())
    return "written"


@GROUP.probe("M1.held", "a start file by a descriptor that the caller left open")
def held(scene: Scene) -> str:
    done = 0
    for descriptor in left_open(stat.S_ISREG):
        with contextlib.suppress(OSError):
            done += os.write(descriptor, line(scene).encode()) > 0
    if not done:
        raise Stopped("no file is open for writing")
    return "written"


@GROUP.probe("M1.held-folder", "a start file by way of a folder that the caller left open")
def held_folder(scene: Scene) -> str:
    for descriptor in left_open(stat.S_ISDIR):
        with contextlib.suppress(OSError):
            file = os.open(f"{STARTS}/held-folder", os.O_WRONLY | os.O_APPEND, dir_fd=descriptor)
            os.write(file, line(scene).encode())
            return "written"
    raise Stopped("no folder is open")


@GROUP.probe("M1.git-moved", "the git folder renamed, and another put in its place")
def git_moved(scene: Scene) -> str:
    git = home(scene, "project/.git")
    git.rename(own(scene, "git"))
    try:
        return _append(scene, git / "config")
    finally:
        if scene.outside:  # for the probes that follow
            git.rename(own(scene, "own"))
            own(scene, "git").rename(git)
            (git / "description").write_text(line(scene))


@GROUP.probe("M1.hooks-exchanged", "a submodule's hooks exchanged with another folder (renameat2)")
def hooks_exchanged(scene: Scene) -> str:
    _append(scene, own(scene, "hooks") / "pre-commit")
    exchange(own(scene, "hooks"), home(scene, "project/.git/modules/two/hooks"))
    return "exchanged"


@GROUP.probe("M1.hook-linked", "a hard link to a protected file of the project, written by")
def hook_linked(scene: Scene) -> str:
    os.link(home(scene, "project/.envrc"), own(scene, "envrc"))
    return _append(scene, own(scene, "envrc"))


@GROUP.probe("M1.config-replaced", "a submodule's settings replaced by renaming, as git does it")
def config_replaced(scene: Scene) -> str:
    lock = home(scene, "project/.git/modules/two/config.lock")
    lock.write_text(line(scene))
    try:
        lock.rename(lock.with_suffix(""))
    except OSError:
        lock.unlink()
        raise
    return "renamed"


# What is taken away


@GROUP.probe("M1.removed", "a file of the home removed", mark="gone home/.hushlogin")
def removed(scene: Scene) -> str:
    home(scene, ".hushlogin").unlink()
    return "removed"


@GROUP.probe("M1.mode", "the rights of a file changed", mark="mode home/.inputrc")
def mode(scene: Scene) -> str:
    home(scene, ".inputrc").chmod(0o4755)
    return "changed"


@GROUP.probe("M1.folder-moved", "a folder renamed, so that a program makes another (tmux)")
def folder_moved(scene: Scene) -> str:
    folder = Path(scene.home).parent / "tmp" / "tmux-0"
    folder.rename(folder.with_name(f"moved-{scene.token}"))
    return "renamed"
