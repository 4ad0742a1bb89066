"""Rights of a sandbox's commands to files: the table `files` of policy files, in a file of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from exeat.errors import ConfigError
from exeat.file_policy import LISTS, FileSettings, as_toml, combine
from exeat.paths import place_of
from exeat.sandbox.files import read_file, remove_file, write_file
from exeat.sandbox.folder import FILES, FRESH_FILES, SandboxFolder

_MAX_BYTES = 1024 * 1024


def read_file_settings(folder: SandboxFolder) -> FileSettings | None:
    """What is kept; None if nothing is. Raises ConfigError: what cannot be read is never nothing."""
    path = settings_path(folder)
    try:
        raw = read_file(folder.descriptor, FILES, path, _MAX_BYTES)
    except FileNotFoundError:
        return None
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise ConfigError("not UTF-8", where=path, expected="text in UTF-8") from None
    return _parse(text, path)


def update_file_settings(
    folder: SandboxFolder, change: Callable[[FileSettings], FileSettings], *, reset: bool = False
) -> FileSettings:
    """Keep what `change` makes of what is kept, or with `reset` of nothing. ConfigError: nothing was changed."""
    path = settings_path(folder)
    with folder.locked():
        before = None if reset else read_file_settings(folder)
        after = change(before or FileSettings(path))
        combine(FileSettings(), [after])  # one that no run could have is not kept
        if after == FileSettings(path):
            remove_file(folder.descriptor, FILES)
        elif after != before:
            write_file(folder.descriptor, FILES, FRESH_FILES, _text(folder.name, after, path), path)
        return after


def added_to(kept: FileSettings, more: FileSettings) -> FileSettings:
    """What is kept, with more: lists become longer, and other settings are replaced."""
    lists = {key: tuple(dict.fromkeys((*getattr(kept, key), *getattr(more, key)))) for key in LISTS}
    return FileSettings(
        kept.where,
        more.mode or kept.mode,
        layer_bytes=kept.layer_bytes if more.layer_bytes is None else more.layer_bytes,
        nest=kept.nest if more.nest is None else more.nest,
        **lists,
    )


def without(kept: FileSettings, paths: Iterable[str]) -> FileSettings:
    """What is kept, without these paths in any list. Raises ConfigError if one of them is in none."""
    known = {path for key in LISTS for path in getattr(kept, key)}
    gone = {path if path in known else full_path(path) for path in paths}
    for path in sorted(gone - known):
        raise ConfigError(f"{path!r} is in no list", where=kept.where, expected=" or ".join(sorted(known)))
    return kept.with_each(lambda path: None if path in gone else path)


def full_path(path: str) -> str:
    """A path that means the same wherever a command is run. One that begins with ~ does already."""
    return path if path.startswith("~") else place_of(path)


def settings_path(folder: SandboxFolder) -> str:
    return f"{folder.path}/{FILES}"


def _parse(text: str, path: str) -> FileSettings:
    from exeat.policy.document import PolicyDocument, parse_document  # for those that have such a file

    document = parse_document(text, path)
    found = document.files or FileSettings(path)
    if document != PolicyDocument((), (), {}, files=document.files):
        raise ConfigError("there is more in it than [files]", where=path, expected="[files] alone")
    for key in LISTS:
        for each in getattr(found, key):
            if not each.startswith(("/", "~")):
                raise ConfigError(
                    f"{each!r} is relative, and commands run in many folders",
                    where=f"{path}: files.{key}",
                    expected="a full path, or one that begins with ~",
                )
    return found


def _text(name: str, settings: FileSettings, path: str) -> bytes:
    lines = (
        f"# What commands in the sandbox {name} may do to files; exeat proxy files --name {name}",
        "# writes this file as a whole, and keeps no comments.",
        *as_toml(settings),
    )
    try:
        return "".join(f"{line}\n" for line in lines).encode("utf-8")
    except UnicodeEncodeError:
        raise ConfigError("a path that is not UTF-8 cannot be kept", where=path, expected="another name") from None
