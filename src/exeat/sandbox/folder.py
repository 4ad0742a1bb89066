"""One folder for each sandbox: made, opened, listed, removed. Everything in it is reached through its descriptor."""

from __future__ import annotations

import os
import re
import stat
from contextlib import AbstractContextManager

from exeat.errors import ConfigError
from exeat.policy.host import shown
from exeat.sandbox.files import file_fault, locked, remove_tree, write_file
from exeat.sandbox.home import make_folder, open_folder, open_home, ownership_fault, refusal, state_home

ALLOWLIST = "allowlist.txt"
FRESH = ".allowlist.tmp"  # the next allowlist, until it is complete
AUDIT = "audit.jsonl"
PLACEHOLDERS = "placeholders.json"
FRESH_PLACEHOLDERS = ".placeholders.tmp"
FILES = "files.toml"  # what commands may do to files; there only if it was said
FRESH_FILES = ".files.tmp"
DISK = "disk.qcow2"  # what guests with an image wrote to it
DISK_NOTE = "disk.json"  # which image that was
FRESH_DISK_NOTE = ".disk.tmp"
MACHINE = "machine.state"  # a virtual machine that has booted
FRESH_MACHINE = ".machine.tmp"
LOCK = "lock"
LAYERS = "layers"  # a folder: what commands wrote outside their projects

_UNFINISHED = ".new"  # a sandbox that is being made; no name starts with a dot
_ALL_LOCK = ".lock"  # for making and removing
_FILES = re.compile(
    r"disk\.qcow2|disk\.json|\.disk\.tmp|machine\.state|\.machine\.tmp|files\.toml|\.files\.tmp|allowlist\.txt|\.allowlist\.tmp|placeholders\.json|\.placeholders\.tmp|audit\.jsonl(?:\.(?:[1-9][0-9]*|next))?|control(?:-[0-9]{1,2})?\.sock|lock"
)
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")


class NoSandboxError(ConfigError):
    """There is no sandbox of that name. `others` says which there are, and which may have been meant; "" if none."""

    def __init__(self, name: str, names: list[str]) -> None:
        self.name = name
        self.others = _others(name, names)
        super().__init__(
            f"there is no sandbox {name}" + (f" ({self.others})" if self.others else ""),
            where="--name",
            expected=f"exeat proxy create --name {name}, or exeat run --new --name {name} ..., to create it",
        )


def _others(name: str, names: list[str]) -> str:
    from difflib import get_close_matches  # only for errors

    if not names:
        return ""
    meant = get_close_matches(name, names, n=1)
    more = ", ..." if len(names) > 8 else ""
    return f"there are: {', '.join(names[:8])}{more}" + (f"; did you mean {meant[0]}?" if meant else "")


class SandboxFolder:
    """An open sandbox. `descriptor` is its folder, checked; `was_created` says that it was not there before.

    The paths are for messages, and for those who open files by path and check what they opened.
    """

    def __init__(
        self, name: str, path: str, descriptor: int, *, was_created: bool = False, starts_empty: bool = False
    ) -> None:
        self.name = name
        self.path = path
        self.descriptor = descriptor
        self.was_created = was_created
        self.starts_empty = starts_empty  # if it was created: with an empty list
        self.allowlist_path = f"{path}/{ALLOWLIST}"
        self.audit_path = f"{path}/{AUDIT}"

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def locked(self) -> AbstractContextManager[None]:
        """Be the only one who changes what it keeps."""
        return locked(self.descriptor, LOCK, f"{self.path}/{LOCK}")

    def __enter__(self) -> SandboxFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_sandbox(name: str, *, create: bool = False, empty: bool = False) -> SandboxFolder:
    """Open a sandbox; with `create`, make it if it is not there, with the default list or an empty one.

    Raises ConfigError; NoSandboxError if it is not there and is not to be made.
    """
    check_name(name)
    path = _path(name)
    within = _open_all(create=create)
    if within is None:
        raise NoSandboxError(name, [])
    was_created = False
    try:
        try:
            descriptor = open_folder(name, path, within)
        except FileNotFoundError:
            if not create:
                raise NoSandboxError(name, _names(within)) from None
            was_created = _make(name, within, "" if empty else default_allowlist())
            descriptor = open_folder(name, path, within)
    finally:
        os.close(within)
    folder = SandboxFolder(name, path, descriptor, was_created=was_created, starts_empty=was_created and empty)
    try:
        for file in (ALLOWLIST, AUDIT, PLACEHOLDERS, FILES, LOCK):
            _check_file(folder, file)
    except BaseException:
        folder.close()
        raise
    return folder


def default_allowlist() -> str:
    """The list that a new sandbox starts with, as it ships in the package."""
    with open(f"{__file__.rpartition('/')[0]}/default-allowlist.txt", encoding="utf-8", newline="") as file:
        return file.read()


def list_sandboxes() -> list[str]:
    """The names of all sandboxes, in order. What is not a folder of ours with a proper name is not one."""
    within = _open_all(create=False)
    if within is None:
        return []
    try:
        return _names(within)
    finally:
        os.close(within)


def remove_sandbox(name: str) -> None:
    """Remove a sandbox with its list and its log. The caller has made sure that nothing runs in it.

    Only files that sandboxes have are removed; if there is anything else in it, nothing is.
    """
    check_name(name)
    within = _open_all(create=False)
    if within is None:
        raise NoSandboxError(name, [])
    try:
        with locked(within, _ALL_LOCK, _path(_ALL_LOCK)):
            try:
                _remove(name, within)
            except FileNotFoundError:
                raise NoSandboxError(name, _names(within)) from None
    finally:
        os.close(within)


def _path(name: str) -> str:
    return f"{state_home()}/sandboxes/{name}"


def _open_all(*, create: bool) -> int | None:
    """A descriptor of the folder that holds all sandboxes; None if there is none."""
    home = open_home(create=create)
    if home is None:
        return None
    path = f"{state_home()}/sandboxes"
    try:
        return open_folder("sandboxes", path, home)
    except FileNotFoundError:
        if not create:
            return None
        make_folder("sandboxes", path, home)
        return open_folder("sandboxes", path, home)
    finally:
        os.close(home)


def _make(name: str, within: int, listed: str) -> bool:
    """Make a sandbox under another name, then give it its own: a crash never leaves one without a list.

    False: another process has just made it.
    """
    with locked(within, _ALL_LOCK, _path(_ALL_LOCK)):
        try:
            os.close(open_folder(name, _path(name), within))
        except FileNotFoundError:
            pass
        else:
            return False
        try:
            _remove(_UNFINISHED, within)  # left by one that died
        except FileNotFoundError:
            pass
        make_folder(_UNFINISHED, _path(_UNFINISHED), within)
        descriptor = open_folder(_UNFINISHED, _path(_UNFINISHED), within)
        try:
            write_file(descriptor, LOCK, FRESH, b"", _path(name))
            write_file(descriptor, ALLOWLIST, FRESH, listed.encode("utf-8"), _path(name))
        finally:
            os.close(descriptor)
        os.rename(_UNFINISHED, name, src_dir_fd=within, dst_dir_fd=within)
        os.fsync(within)
    return True


def _remove(name: str, within: int) -> None:
    descriptor = open_folder(name, _path(name), within)
    try:
        names = os.listdir(descriptor)
        strange = sorted(each for each in names if not _is_known(each, descriptor))
        if strange:
            more = f" and {len(strange) - 1} more" if len(strange) > 1 else ""
            raise ConfigError(
                f"not removed: {shown(strange[0])}{more} in it does not belong to exeat",
                where=_path(name),
                expected="only exeat's own files: move it away first",
            )
        for each in names:
            remove_tree(descriptor, each)
        os.rmdir(name, dir_fd=within)
    except OSError as error:
        raise ConfigError(f"not removed: {error.strerror}", where=_path(name), expected="another try") from None
    finally:
        os.close(descriptor)


def _is_known(name: str, within: int) -> bool:
    is_folder = stat.S_ISDIR(os.stat(name, dir_fd=within, follow_symlinks=False).st_mode)
    return name == LAYERS if is_folder else bool(_FILES.fullmatch(name))


def _check_file(folder: SandboxFolder, name: str) -> None:
    try:
        found = os.stat(name, dir_fd=folder.descriptor, follow_symlinks=False)
    except FileNotFoundError:
        return
    # A full log has two names for a moment, until a new one takes its place.
    if fault := file_fault(found, one_name=name != AUDIT):
        raise refusal(f"{folder.path}/{name}", fault)


def _names(within: int) -> list[str]:
    with os.scandir(within) as entries:
        return sorted(
            entry.name
            for entry in entries
            if is_name(entry.name)
            and entry.is_dir(follow_symlinks=False)
            and not ownership_fault(entry.stat(follow_symlinks=False))
        )


def check_name(text: str, where: str = "--name") -> str:
    """The name itself, if it is one. `fullmatch`: with `$`, a name could end in a newline."""
    if not _NAME.fullmatch(text):
        raise ConfigError(
            f"{shown(text)} is not a sandbox name",
            where=where,
            expected="1 to 40 characters of a-z, 0-9 and -, not starting with -, such as my-project",
        )
    return text


def is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None
