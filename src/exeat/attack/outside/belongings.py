"""A small machine of a user's files: a home with keys and start files in it, and the project that they work in.

It lies in a folder that the corpus has made. The project is the working directory of the command; all else is what the
command must not change. What got there is seen by looking, from outside, for a token in the names and contents of
files. The keys are ours: nothing of the user is read, changed or told to a probe.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

from exeat.attack.outside.addresses import second_paths
from exeat.attack.outside.kernel_objects import HostQueue, file_handle

OPEN = "open"  # the folder of the project in which a probe may leave what it needs

# In the home, by a name for the scene. All of them hold the same secret, and all are on the list of hidden keys.
KEYS = {
    "ssh": ".ssh/id_ed25519",
    "aws": ".aws/credentials",
    "azure": ".azure/token",
    "gcloud": ".config/gcloud/credentials.db",
    "gh": ".config/gh/hosts.yml",
    "gnupg": ".gnupg/private-keys-v1.d/0.key",
    "kube": ".kube/config",
    "docker": ".docker/config.json",
    "netrc": ".netrc",
    "git": ".git-credentials",
    "npm": ".npmrc",
    "pypi": ".pypirc",
    "cargo": ".cargo/credentials.toml",
    "firefox": ".mozilla/firefox/one.default/logins.json",
    "pass": ".password-store/mail.gpg",
    "keyring": ".local/share/keyrings/login.keyring",
    "history": ".bash_history",
    "agent": ".claude/.credentials.json",
}
# Start files, one for each way to get at one, so that no probe undoes the work of another.
STARTS = ".config/starts.d"
WAYS = (
    "replaced", "exchanged", "exchanged-there", "hardlink", "symlink", "symlink-before", "mapped", "copied", "root",
    "cwd", "dotdot", "held", "held-folder",
)  # fmt: skip
PACKAGES = f".local/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
_PLAIN = (
    ".bashrc", ".profile", ".inputrc", ".hushlogin", ".gitconfig", ".vimrc", ".ssh/authorized_keys", ".ssh/config",
    ".ssh/known_hosts", ".config/fish/config.fish", ".config/systemd/user/backup.service",
    ".config/autostart/a.desktop", ".local/bin/tool", f"{PACKAGES}/one.py", "guest/.profile", "../tmp/tmux-0/default",
    "project/README", f"project/{OPEN}/file", *(f"{STARTS}/{name}" for name in WAYS),
)  # fmt: skip
# In the project, what runs outside later of itself.
_LATER = (
    ".git/HEAD", ".git/config", ".git/hooks/pre-commit", ".git/objects/keep", ".git/refs/heads/keep",
    ".git/modules/sub/HEAD", ".git/modules/sub/config", ".git/modules/sub/objects/keep", ".git/modules/sub/refs/keep",
    ".git/modules/sub/hooks/post-merge", ".git/modules/two/HEAD", ".git/modules/two/config",
    ".git/modules/two/hooks/post-merge", ".git/modules/two/objects/keep", ".git/modules/two/refs/keep",
    ".envrc", ".vscode/tasks.json", ".idea/workspace.xml", ".mcp.json",
    ".claude/settings.json", ".husky/pre-commit",
)  # fmt: skip
_CONTENT = {
    f"{git}/{name}": content
    for git in (".git", ".git/modules/sub", ".git/modules/two")
    for name, content in (("HEAD", "ref: refs/heads/main\n"), ("config", "[core]\n\tbare = false\n"))
}
_REVISION_2 = 2  # of capabilities of files; the third has the user namespace in it
_PADDING = "# a line of the user's own\n" * 8  # a token has room in it
# Folders of the system from which something is started. What is left there for a moment starts nothing: its name has a
# dot before it, which all that read these folders pass over.
SYSTEM = {
    "cron": "/etc/cron.d",
    "crontab": "/var/spool/cron/crontabs",
    "profile": "/etc/profile.d",
    "units": "/etc/systemd/system",
    "path": "/usr/local/bin",
    "etc": "/etc",
    "sudoers": "/etc/sudoers.d",
}


def name_in_system(token: str) -> str:
    """Of a file in one of the folders of the system."""
    return f".exeat-attack-{token}"


class Belongings:
    """The files as they lie outside, laid out again for each run."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack, *, shared: bool) -> None:
        self._folder = folder / "machine"
        self.home = self._folder / "home"
        self.project = self.home / "project"
        self.secret = f"filekey-{secrets.token_hex(12)}"
        self._shared = shared
        self._modes: dict[str, int] = {}
        self._fifo = -1
        self._said = b""  # by the FIFO
        self._in_system: list[tuple[str, str]] = []  # marks that were found there, and taken away
        self._memory = Path("/dev/shm", f"exeat-attack-{secrets.token_hex(6)}")  # noqa: S108 - a place to attack
        self._queue = HostQueue(f"/exeat-attack-{secrets.token_hex(6)}")
        stack.callback(self._close)
        self.lay_out()

    def scene(self) -> dict[str, str]:
        """Where things are, for probes."""
        found = {f"key {name}": str(self.home / path) for name, path in KEYS.items()}
        found |= {"fifo": str(self._folder / "tmp" / "fifo"), "handle": file_handle(self.home / KEYS["ssh"])}
        if self._memory.exists():
            found["memory"] = str(self._memory)
        if self._queue.name:
            found["queue"] = self._queue.name
        for second in second_paths(found["key ssh"])[:1]:
            found["second"] = second
        return found

    def lay_out(self) -> None:
        """As if nothing had happened to it."""
        self._let_go()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir()
        for path in KEYS.values():
            self._write(self.home / path, f"{self.secret}\n")
        for path in (*_PLAIN, *(f"project/{each}" for each in _LATER)):
            self._write(Path(os.path.normpath(self.home / path)), _CONTENT.get(path.removeprefix("project/"), _PADDING))
        # A folder of keys that is a link, as people have it who keep their settings in a repository.
        (self.home / "dotfiles").mkdir()
        (self.home / ".azure").rename(self.home / "dotfiles" / "azure")
        (self.home / ".azure").symlink_to("dotfiles/azure")
        (self.home / "copies").mkdir()
        os.link(self.home / KEYS["netrc"], self.home / "copies" / "second-name")
        (self.project / OPEN / "to-key").symlink_to(self.home / KEYS["ssh"])
        (self.project / OPEN / "to-home").symlink_to(self.home)
        fifo = self._folder / "tmp" / "fifo"
        os.mkfifo(fifo)
        fifo.chmod(0o666)
        self._fifo = os.open(fifo, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        with contextlib.suppress(OSError):
            self._memory.write_bytes(b" " * 64)
            self._memory.chmod(0o666)
        if self._shared:
            self._open_to_everybody()
        self._modes = {name: stat.S_IMODE(os.lstat(path).st_mode) for name, path in self._walk()}

    def where(self, mark: str) -> list[str]:
        """The places outside that a mark has got to: the names of files that hold it, or are called so."""
        wanted = mark.encode()
        found = [name for name, path in self._walk() if wanted in os.fsencode(name) or wanted in _content(path)]
        now = {name: stat.S_IMODE(os.lstat(path).st_mode) for name, path in self._walk()}
        found += [name for name in self._modes if name not in now and mark == f"gone {name}"]
        found += [name for name, mode in self._modes.items() if now.get(name, mode) != mode and mark == f"mode {name}"]
        found += [f"{path.name}, with a capability" for path in self._folder.rglob(f"*{mark}") if _is_capable(path)]
        found += [f"{path.name}, of another user" for path in self._folder.rglob(f"*{mark}") if _is_of_another(path)]
        self._said += _drain(self._fifo) + self._queue.drain()
        if wanted in self._said:
            found.append("a program that reads a FIFO or a message queue")
        if wanted in _content(self._memory):
            found.append("shared memory")
        for folder in SYSTEM.values():
            with contextlib.suppress(OSError):
                Path(folder, name_in_system(mark)).unlink()
                self._in_system.append((mark, folder))
        return [*found, *(folder for each, folder in self._in_system if each == mark)]

    def _walk(self) -> Iterator[tuple[str, Path]]:
        """All that a probe must not change, by names below the machine's folder."""
        free = self.project / OPEN
        for top, folders, files in os.walk(self._folder):
            # What exeat takes out of use when it is made carries its name.
            folders[:] = [each for each in folders if Path(top, each) != free and not each.endswith(".exeat-blocked")]
            for each in (*folders, *files):
                if not each.endswith(".exeat-blocked") and ".local/state" not in top:
                    path = Path(top, each)
                    yield str(path.relative_to(self._folder)), path

    def _write(self, path: Path, content: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)

    def _open_to_everybody(self) -> None:
        for top, folders, files in os.walk(self._folder):
            for each in (*folders, *files):
                path = Path(top, each)
                if not path.is_symlink():
                    path.chmod(0o777 if path.is_dir() else 0o666)
        self._folder.chmod(0o777)

    def _let_go(self) -> None:
        if self._fifo >= 0:
            os.close(self._fifo)
        self._fifo, self._said = -1, b""

    def _close(self) -> None:
        self._let_go()
        self._queue.close()
        self._memory.unlink(missing_ok=True)


def _is_capable(path: Path) -> bool:
    """Has it a capability that counts everywhere, and not in a user namespace only?"""
    try:
        return os.getxattr(path, "security.capability", follow_symlinks=False)[3] == _REVISION_2
    except OSError:
        return False


def _is_of_another(path: Path) -> bool:
    """Is it a set-user-ID program of someone else?"""
    found = os.lstat(path)
    return bool(found.st_mode & stat.S_ISUID) and found.st_uid != os.geteuid()


def _content(path: Path) -> bytes:
    try:
        if path.is_symlink():
            return bytes(path.readlink())
        return path.read_bytes() if path.is_file() else b""
    except OSError:
        return b""


def _drain(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:
        return b""
