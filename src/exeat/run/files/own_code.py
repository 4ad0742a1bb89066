"""exeat's own code on this machine: its package, its environment and its interpreter.

The command is the same user and could write there; at the next start it would run outside. So all of it is read-only
inside, as far as the user could change it. For an environment that is everything: a `.pth` file is code, too.
"""

from __future__ import annotations

import os
import site
import sys
from collections.abc import Mapping, Sequence

import exeat
from exeat.paths import steps

_PARTS = ("bin", "lib", "lib64", "pyvenv.cfg")
# Root's alone. What runs as root can change any program of the system, so there is no point in holding this one.
_SYSTEM = ("/usr", "/usr/local")
_INSTALLERS = ("pip", "pip3", "uv", "poetry", "pdm", "conda")


class OwnCode:
    """Files and folders that must not be changed, and folders in them that may be."""

    def __init__(self, home: str, cwd: str) -> None:
        self._busy = tuple(map(os.path.realpath, (home, cwd)))
        standard = os.path.dirname(os.__file__)
        is_environment = sys.prefix != sys.base_prefix
        wanted = [_launcher(), *self._package(), *_user_packages()]
        if is_environment:
            wanted += self._whole_or_parts(sys.prefix)
        if sys.base_prefix not in _SYSTEM:
            # Whole folders: it looks for a `pythonXY.zip` before its modules, and for settings next to the program.
            folders = _parts(sys.base_prefix) if is_environment else self._whole_or_parts(sys.base_prefix)
            wanted += [os.path.dirname(os.path.realpath(sys.executable)), standard, *folders]
        if sys.base_prefix not in _SYSTEM or is_environment or os.geteuid() != 0:
            # By this name, so that every link on the way is held: that of an environment may lead through anywhere.
            wanted.append(sys.executable)
        self.read_only = [path for path in dict.fromkeys(wanted) if path and _can_be_changed(path)]
        self.still_writable = _of_others(standard) if is_environment and standard in self.read_only else []
        environments = f"{sys.base_prefix}/envs"  # of others: conda and pyenv-virtualenv keep them there
        if sys.base_prefix in self.read_only and os.path.isdir(environments):
            self.still_writable.append(environments)

    def _package(self) -> list[str]:
        """With the folder that it is found in: Python looks there for other modules as well."""
        package = os.path.dirname(os.path.abspath(exeat.__file__))
        folder = os.path.dirname(package)
        return [folder] if not self._is_needed(folder) else [package]

    def _whole_or_parts(self, prefix: str) -> list[str]:
        return _parts(prefix) if self._is_needed(prefix) else [prefix]

    def _is_needed(self, folder: str) -> bool:
        """Is the command at home or at work there?"""
        real = os.path.realpath(folder)
        return any(each == real or each.startswith(f"{real}/") for each in self._busy)


def _launcher() -> str:
    """The program or link by which we were started, if it is not a part of the package."""
    started = os.path.abspath(sys.argv[0]) if "/" in sys.argv[0] else ""
    return started if os.path.basename(started) == "exeat" and os.path.isfile(started) else ""


def _user_packages() -> list[str]:
    """The user's own folder of packages, if Python looks there: a `.pth` file in it runs at every start."""
    return [folder] if (folder := site.USER_SITE) and folder in sys.path else []


def _parts(prefix: str) -> list[str]:
    return [f"{prefix}/{part}" for part in _PARTS]


def _of_others(standard: str) -> list[str]:
    """What is installed for the interpreter itself. In an environment it does not load that, unless it is told to."""
    used = [os.path.realpath(path) for path in sys.path]
    folders = [f"{standard}/{name}" for name in ("site-packages", "dist-packages")]
    return [path for path in folders if os.path.isdir(path) and os.path.realpath(path) not in used]


def _can_be_changed(path: str) -> bool:
    """By a process with our rights, perhaps after a chmod; or replaced, with any part of the way to it."""
    if not os.path.exists(path):
        return False
    own = os.geteuid()
    folders = (step.folder for step in steps(os.path.abspath(path)))
    return any(os.access(each, os.W_OK) or os.stat(each).st_uid == own for each in (path, *folders))


def warning_of_second_names() -> str:
    """If the package has another name, somewhere where the command can write to it. "" otherwise."""
    if os.stat(exeat.__file__).st_nlink == 1 or not _can_be_changed(exeat.__file__):
        return ""
    return (
        "exeat's own files have second names (hard links into a cache, as uv makes them), by which the command could "
        "change them; reinstall exeat with UV_LINK_MODE=copy"
    )


def advice_on_installing(argv: Sequence[str], environ: Mapping[str, str]) -> str:
    """For a command that failed, if it is likely to have wanted to install something here. "" otherwise."""
    if sys.prefix == sys.base_prefix:
        is_likely = os.path.basename(argv[0]) in _INSTALLERS or argv[1:3] == ["-m", "pip"]
        where = os.path.dirname(os.path.dirname(os.path.abspath(exeat.__file__)))
    else:
        where = sys.prefix
        active = environ.get("VIRTUAL_ENV", "")
        is_likely = bool(active) and os.path.realpath(active) == os.path.realpath(where)
        is_likely = is_likely or os.path.realpath(os.path.dirname(argv[0])) == os.path.realpath(f"{where}/bin")
    if not is_likely:
        return ""
    return (
        f"{where}, which exeat runs from, is read-only inside; to install something into it, take exeat from "
        "elsewhere: pipx install exeat, or uv tool install exeat"
    )
