"""Reads and writes the allowlist of a sandbox. Writers take turns; readers see the old list or the new one, whole."""

from __future__ import annotations

from collections.abc import Callable

from exeat.errors import ConfigError
from exeat.sandbox.allowlist import Allowlist, parse_allowlist_file
from exeat.sandbox.files import locked, read_file, remove_file, write_file
from exeat.sandbox.folder import ALLOWLIST, FRESH, LOCK, PLACEHOLDERS, SandboxFolder

MAX_BYTES = 8 * 1024 * 1024


def read_allowlist(folder: SandboxFolder) -> Allowlist:
    """The list as it is now. Raises ConfigError: a list that is missing or broken is never an empty one."""
    return parse_allowlist_file(_read(folder), folder.allowlist_path)


def update_allowlist(folder: SandboxFolder, change: Callable[[Allowlist], Allowlist]) -> Allowlist:
    """Change the list: the result of `change` takes its place at once, or nothing does.

    `change` gets the list as it is now, not as the caller may have read it before: others write to it, too.
    """
    with locked(folder.descriptor, LOCK, f"{folder.path}/{LOCK}"):
        before = read_allowlist(folder)
        after = change(before)
        if after.text != before.text:
            _write(folder, after.text)
        return after


def replace_allowlist(folder: SandboxFolder, text: str) -> tuple[Allowlist, bool]:
    """Put a new list in the place of the old one, which may be missing or broken. True: its text is another one."""
    after = parse_allowlist_file(text, folder.allowlist_path)
    with locked(folder.descriptor, LOCK, f"{folder.path}/{LOCK}"):
        try:
            if _read(folder) == text:
                return after, False
        except ConfigError:
            pass  # whatever is wrong with the old one, it goes
        _write(folder, text)
    return after, True


def forget_placeholders(folder: SandboxFolder) -> None:
    """The next run makes up new ones. Commands that run keep theirs."""
    with locked(folder.descriptor, LOCK, f"{folder.path}/{LOCK}"):
        remove_file(folder.descriptor, PLACEHOLDERS)


def _read(folder: SandboxFolder) -> str:
    path = folder.allowlist_path
    try:
        raw = read_file(folder.descriptor, ALLOWLIST, path, MAX_BYTES)
    except FileNotFoundError:
        raise ConfigError(
            "there is no allowlist",
            where=path,
            expected=f"exeat proxy reset --name {folder.name}, which makes a new one",
        ) from None
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        start = raw.rfind(b"\n", 0, error.start) + 1
        line, column = raw.count(b"\n", 0, start) + 1, len(raw[start : error.start].decode("utf-8")) + 1
        raise ConfigError("not UTF-8", where=f"{path}:{line}:{column}", expected="text in UTF-8") from None


def _write(folder: SandboxFolder, text: str) -> None:
    content = text.encode("utf-8")
    if len(content) > MAX_BYTES:
        raise ConfigError("the list would be larger than 8 MiB", where=folder.allowlist_path, expected="fewer rules")
    write_file(folder.descriptor, ALLOWLIST, FRESH, content, folder.allowlist_path)
