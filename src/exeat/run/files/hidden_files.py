"""Files hidden from the command: keys, and files that control or record the command.

Links that lead to them are included, since they can lead elsewhere later. A missing file cannot be covered, and a
command could make it, with rules of its own in it for the next run. So folders of exeat's own in what is shared for
real are made first, and must stay while the command runs.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable

from exeat.errors import ConfigError, JailError, StartError
from exeat.files.keys.hidden import OWN_FILES, HiddenPath, hidden_paths
from exeat.paths import is_below, links_on_way, look, root_of
from exeat.run.settings import Plan
from exeat.sandbox.home import make_folders, make_home, state_home


def find_hidden(plan: Plan, own: list[str]) -> list[HiddenPath]:
    """What is not there for the command. With the host's own files that is what decides about it, and no keys."""
    program = os.path.basename(plan.settings.argv[0])
    if plan.files.mode == "view":
        return hidden_paths(user_home(), os.environ, os.geteuid(), plan.files, program=program, own=own)
    found = {os.path.realpath(path): "asked for" for path in plan.files.hide}
    found |= {os.path.realpath(path): OWN_FILES for path in own if os.path.exists(path)}
    return [HiddenPath(path, (), why) for path, why in found.items()]


def own_folders() -> list[str]:
    """Where exeat keeps its state, and where it would without EXEAT_HOME or XDG_STATE_HOME. Raises ConfigError."""
    try:
        used = [state_home()]
    except ConfigError:
        if os.environ.get("EXEAT_HOME"):
            raise
        used = []  # no home, and so no state
    bases = (os.environ.get("XDG_STATE_HOME", ""), os.path.expanduser("~/.local/state"))
    usual = (f"{base.rstrip('/')}/exeat" for base in bases if base.startswith("/"))
    return list(dict.fromkeys((*used, *usual)))


def user_home() -> str:
    """Without links. There may be none: no variable, and no account."""
    found = os.path.expanduser("~")
    return os.path.realpath(found) if found.startswith("/") else "/"


def working_directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise ConfigError("the working directory no longer exists", where="exeat run", expected="cd") from None


def own_files(plan: Plan) -> list[str]:
    """What decides about the command, or tells of it: rules, secrets, logs, exeat's own state."""
    settings, prepared = plan.settings, plan.prepared
    log = (settings.audit, *plan.log_files)
    written = (*dict.fromkeys(log), settings.learn_out, settings.summary_json)
    files = (*written, *settings.rules.files, *settings.rules.secrets_files, *prepared.hidden)
    for path in filter(_has_second_name, prepared.hidden):  # only names that are known can be hidden
        raise StartError(
            f"{path!r} holds a secret and has a second name (a hard link), by which the command could read it",
            detail="remove the other name, or name a file that has one",
        )
    found = [os.path.abspath(path) for path in files if path and _can_be_hidden(path)]
    folders = own_folders()
    if any(is_below(working_directory(), os.path.realpath(folder)) for folder in folders):
        raise ConfigError(
            "the working directory is in exeat's own folder, which is hidden from the command",
            where="exeat run",
            expected="cd to another folder",
        )
    return [*found, *folders]


def refuse_second_names(paths: Iterable[str]) -> None:
    """Of what decides about the command, or tells of it, in folders that it changes. Raises StartError."""
    for path in filter(_has_second_name, paths):
        raise StartError(
            f"{path!r} controls or records the command, and has a second name (a hard link), by which "
            "the command could change it",
            detail="remove the other name, or keep the file outside of the folders that the command changes",
        )


def _has_second_name(path: str) -> bool:
    found = look(os.path.realpath(path))  # None: gone, or out of the command's reach as well
    return found is not None and stat.S_ISREG(found.st_mode) and found.st_nlink > 1


def _can_be_hidden(path: str) -> bool:
    """A file or a pipe. Standard output and devices are the command's as well."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode) or (stat.S_ISFIFO(mode) and not path.startswith(("/dev/", "/proc/")))


def make_own_folders(shared: Iterable[str]) -> bool:
    """Those that are missing in folders that are shared for real. Tells whether there were any. Raises ConfigError."""
    missing = [path for path in own_folders() if not os.path.isdir(path) and root_of(os.path.realpath(path), shared)]
    for path in missing:
        if _is_out_of_reach(path):
            continue
        if path == state_home():
            make_home()
        else:
            make_folders(path)
    return bool(missing)


def _is_out_of_reach(path: str) -> bool:
    """Could the command, with our rights, not make it either? What is ours it could open with a chmod."""
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    if os.access(path, os.W_OK) or not os.path.isdir(path):
        return False
    is_read_only = os.statvfs(path).f_flag & os.ST_RDONLY
    return bool(is_read_only) or os.stat(path).st_uid != os.geteuid()


class HiddenWays:
    """Hidden files by the names that are used for them, and folders that must stay, as they are now."""

    def __init__(self, names: Iterable[str], lasting: Iterable[str]) -> None:
        self._names = tuple(names)
        self._known = {os.path.realpath(name) for name in self._names}
        self._lasting = {path: os.lstat(path) for path in lasting}

    @property
    def links(self) -> list[str]:
        """All that could lead elsewhere."""
        return [link for name in self._names for link in links_on_way(name)]

    def look_again(self, roots: Iterable[str]) -> list[tuple[str, str]]:
        """What is to be hidden as well, each after the one of `roots`, which are shared for real, that it is in.

        A JailError if something cannot be hidden.
        """
        for path, known in self._lasting.items():
            found = look(path)
            if found is None or not os.path.samestat(found, known):
                raise JailError("exeat's own folder was moved or removed while the command ran", detail=path)
        new = []
        for name in self._names:
            target = os.path.realpath(name)
            if target in self._known or not os.path.lexists(target):
                continue
            self._known.add(target)
            root = root_of(target, roots)
            if not root:
                raise JailError(f"{name} now leads to another file, which can no longer be hidden", detail=target)
            new.append((root, target))
        return new
