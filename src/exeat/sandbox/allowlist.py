"""The allowlist of a sandbox, as text that people edit too. An edit leaves all other bytes unchanged.

Writers take turns; readers see the old list or the new one, whole.
"""

from __future__ import annotations

from collections.abc import Callable

from exeat.errors import ConfigError
from exeat.policy.document import parse_listing
from exeat.policy.grammar import parse_rule
from exeat.policy.rule import Rule, Source
from exeat.sandbox.files import read_file, write_file
from exeat.sandbox.folder import ALLOWLIST, FRESH, SandboxFolder
from exeat.values import field, frozen

MAX_BYTES = 8 * 1024 * 1024


@frozen
class Allowlist:
    """A list, read. `rules` say which line they are from. Made by `parse_allowlist_file`, never from raw text."""

    text: str
    path: str
    rules: tuple[Rule, ...] = field(compare=False, repr=False)

    def with_rule(self, text: str) -> Allowlist:
        """The rule appended as a line of its own, unless an equal rule is there. Raises ConfigError."""
        ending = "\r\n" if "\r\n" in self.text else "\n"
        whole = self.text if self.text.endswith("\n") or self.text in ("", "\ufeff") else self.text + ending
        rule = parse_rule(text.strip(" "), Source(self.path, whole.count("\n") + 1, 1))
        if rule in self.rules:
            return self
        return Allowlist(f"{whole}{text.strip(' ')}{ending}", self.path, (*self.rules, rule))

    def without(self, rule: Rule) -> Allowlist:
        """Every line with an equal rule taken out, with the comment behind it."""
        gone = {each.source.line for each in self.rules if each == rule}
        if not gone:
            return self
        *lines, last = self.text.split("\n")
        kept = [line for number, line in enumerate((*(f"{line}\n" for line in lines), last), 1) if number not in gone]
        return parse_allowlist_file("".join(kept), self.path)


def parse_allowlist_file(text: str, path: str) -> Allowlist:
    """Read a list. Raises ConfigError with file:line:column."""
    return Allowlist(text, path, parse_listing(text, path))


def read_allowlist(folder: SandboxFolder) -> Allowlist:
    """The list as it is now. Raises ConfigError: a list that is missing or broken is never an empty one."""
    return parse_allowlist_file(_read(folder), folder.allowlist_path)


def update_allowlist(folder: SandboxFolder, change: Callable[[Allowlist], Allowlist]) -> Allowlist:
    """Change the list: the result of `change` takes its place at once, or nothing does.

    `change` gets the list as it is now, not as the caller may have read it before: others write to it, too.
    """
    with folder.locked():
        before = read_allowlist(folder)
        after = change(before)
        if after.text != before.text:
            _write(folder, after.text)
        return after


def replace_allowlist(folder: SandboxFolder, text: str) -> tuple[Allowlist, bool]:
    """Put a new list in the place of the old one, which may be missing or broken. True: its text is another one."""
    after = parse_allowlist_file(text, folder.allowlist_path)
    with folder.locked():
        try:
            if _read(folder) == text:
                return after, False
        except ConfigError:
            pass  # whatever is wrong with the old one, it goes
        _write(folder, text)
    return after, True


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
