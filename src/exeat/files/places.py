"""Where a path is, really: the few questions about paths that all decisions on files ask."""

from __future__ import annotations

import os

# Without these no command runs, so none of them can be hidden as a whole.
_NEEDED = frozenset(f"/{name}" for name in (
    "bin", "boot", "dev", "etc", "home", "lib", "lib32", "lib64", "nix", "opt", "proc", "root", "run", "sbin", "srv",
    "sys", "tmp", "usr", "usr/bin", "usr/lib", "usr/local", "usr/sbin", "usr/share", "var", "var/cache", "var/lib",
    "var/log", "var/tmp",
))  # fmt: skip

_SYSTEM = ("/usr/", "/bin/", "/sbin/", "/lib", "/nix/", "/opt/", "/snap/")


def full_path(text: str, home: str) -> str:
    """As a person writes a path: `~` is the home directory, and what does not begin with / is here."""
    if text == "~" or text.startswith("~/"):
        text = home.rstrip("/") + text[1:] or "/"
    return os.path.abspath(text)


def place_of(path: str) -> str:
    """The same path without links on the way. The last part stays, be it a link or not."""
    folder, _, name = path.rstrip("/").rpartition("/")
    if name in ("", ".", ".."):
        return os.path.realpath(path)
    return f"{os.path.realpath(folder or '/').rstrip('/')}/{name}"


def is_below(path: str, folder: str) -> bool:
    """Is it this folder, or in it? Both are full paths without links on the way."""
    return folder in (path, "/") or path.startswith(f"{folder}/")


def is_needed(path: str, home: str) -> bool:
    """Would nothing be left if this were hidden: the system's folders, the home directory and what it is in?"""
    return path in _NEEDED or is_below(home, path)


def is_of_system(path: str) -> bool:
    """Does it belong to a package? No key is there."""
    return path.startswith(_SYSTEM)


def name_matches(name: str, pattern: str) -> bool:
    """Is this a name that the pattern means? `*` stands for any characters, once."""
    before, star, after = pattern.partition("*")
    if not star:
        return name == pattern
    return len(name) >= len(before) + len(after) and name.startswith(before) and name.endswith(after)
