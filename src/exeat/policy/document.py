"""Reads policy files, the allowlist variable and host mappings. Text in, values out; no file is opened.

A setting is taken whole or refused whole. A file with one bad line must not become a policy without it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, NoReturn

from exeat.errors import ConfigError, HostError
from exeat.policy.address import Network, parse_private_network
from exeat.policy.grammar import parse_rule, read_rule
from exeat.policy.host import Address, Name, configured_host, shown
from exeat.policy.options import RuleError
from exeat.policy.policy import IP, HostMapping
from exeat.policy.rule import Rule, Source
from exeat.values import field, frozen

if TYPE_CHECKING:
    from exeat.file_policy import FileSettings
    from exeat.policy.positions import Places


MAX_DOCUMENT = 8 * 1024 * 1024  # characters

POLICY_KEYS = ("allow", "deny", "hosts", "private_networks", "limits", "intercept", "secrets", "files")
INTERCEPT_MODES = ("needed", "all", "none")

_ALL_KEYS = "allow, deny, hosts, private_networks, limits, intercept, secrets and files"
_MODES = '"needed", "all" or "none"'
_TOML_PLACE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
# Keys in tomllib's messages: any of them could be a credential.
_TOML_NAME = re.compile(r"\(.*\)|(?<=inline table key ).*")
_PLAIN = re.compile(r"[A-Za-z_]{1,32}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


@frozen
class SecretsTable:
    """The table `secrets` of a file, unread, and where each part of it was written. It may hold values: no `repr`."""

    content: dict[str, object] = field(repr=False)
    where: Places = field(repr=False)


@frozen
class PolicyDocument:
    """A policy file, read. `limits` are scalars whose meaning is checked where they are used."""

    rules: tuple[Rule, ...]
    hosts: tuple[HostMapping, ...]
    limits: dict[str, tuple[object, Source]]
    intercept: tuple[str, Source] | None = None  # one of INTERCEPT_MODES
    secrets: SecretsTable | None = None
    private_networks: tuple[Network, ...] = ()
    files: FileSettings | None = None  # paths as they are written


def parse_document(text: str, filename: str) -> PolicyDocument:
    """Read a policy file: JSON if the name ends in .json, else TOML. Its keys are POLICY_KEYS."""
    return _Reader(*parse_data(text, filename, as_json=is_json(filename))).read()


def parse_table(table: object, where: Places) -> PolicyDocument:
    """A policy that is one table of a larger file."""
    return _Reader(table, where).read()


def is_json(filename: str) -> bool:
    """Whether a file is JSON by its name. All others are TOML."""
    return filename.lower().endswith(".json")


def parse_data(text: str, filename: str, *, as_json: bool) -> tuple[object, Places]:
    """What a file says, by the real parser, and where. No error shows a value: it could be a secret."""
    if len(text) > MAX_DOCUMENT:
        raise ConfigError("the file is over 8 MiB", where=filename)
    from exeat.policy.positions import Places, Positions

    data = _load_json(text, filename) if as_json else _load_toml(text, filename)
    return data, Places(filename, Positions(text, json=as_json))


def parse_allowlist(text: str, name: str = "PROXY_ALLOWLIST") -> tuple[Rule, ...]:
    """Rules separated by commas, as in an environment variable. Empty means none, so nothing is allowed."""
    if len(text) > MAX_DOCUMENT:
        raise ConfigError("the value is over 8 MiB", where=name)
    if bad := _CONTROL.search(text):
        # One bad character refuses all of it: part of an injected value is still an injected value.
        raise ConfigError(
            f"the value contains the character {shown(bad[0])}",
            where=f"{name}, character {bad.start() + 1}",
            expected="rules separated by commas, on one line",
        )
    items = enumerate(text.split(","), 1)
    return tuple(parse_rule(item.strip(" "), Source(name, item=i)) for i, item in items if item.strip(" "))


def parse_host_mapping(text: str, source: Source) -> HostMapping:
    """Read `NAME:ADDR`. The address may be IPv4, or IPv6 with or without brackets."""
    name, colon, address = text.partition(":")
    if not colon or not address:
        raise ConfigError(f"{shown(text)} is not a host mapping", where=str(source), expected="NAME:ADDR")
    return mapped_name(name, str(source)), (mapped_address(address, source.at(len(name) + 1)),)


def mapped_name(text: str, where: str) -> str:
    try:
        host = configured_host(text)
    except HostError as error:
        raise ConfigError(error.public, where=where, expected="a host name, such as db.internal.test") from None
    if not isinstance(host, Name):
        raise ConfigError(f"{shown(text)} is an address; only a name can be mapped", where=where, expected="NAME:ADDR")
    return host.text


def mapped_address(text: str, where: str) -> IP:
    try:
        host = configured_host(text)
    except HostError as error:
        raise ConfigError(error.public, where=where, expected="an IP address, such as 10.0.0.5 or ::1") from None
    if not isinstance(host, Address):
        raise ConfigError(f"{shown(text)} is not an IP address", where=where, expected="such as 10.0.0.5 or ::1")
    return host.ip


def _load_json(text: str, filename: str) -> object:
    import json

    repeated: list[str] = []

    def pairs(items: list[tuple[str, object]]) -> dict[str, object]:
        table = dict(items)
        if len(table) < len(items):
            seen: set[str] = set()
            for key, _ in items:
                if key in seen:
                    repeated.append(key)
                seen.add(key)
        return table

    def constant(word: str) -> NoReturn:
        raise ValueError(f"{word} is not a JSON value")

    try:
        data: object = json.loads(text, object_pairs_hook=pairs, parse_constant=constant)
    except json.JSONDecodeError as error:
        where = f"{filename}:{error.lineno}:{error.colno}"
        raise ConfigError(f"not valid JSON: {error.msg}", where=where) from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"not valid JSON: {_ascii(str(error))}", where=f"{filename}:1") from None
    if repeated:
        from exeat.policy.positions import Positions

        # Parsers disagree on which of two equal keys counts, so a reviewer may have read the other.
        place = Positions(text, json=True).repeated
        where = f"{filename}:{place.line}:{place.column}" if place else f"{filename}:1"
        raise ConfigError(f"{_named(repeated[0])} is given twice", where=where, expected="each key once")
    return data


def _load_toml(text: str, filename: str) -> object:
    import tomllib

    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # TOMLDecodeError is a ValueError
        message = str(error)
        found = _TOML_PLACE.search(message)
        where = f"{filename}:1"
        if found:
            last = text.removesuffix("\n")
            line, column = found[1] or last.count("\n") + 1, found[2] or len(last) - last.rfind("\n")
            where = f"{filename}:{line}:{column}"
        problem = _TOML_NAME.sub("it", _ascii(message[: found.start()] if found else message))
        raise ConfigError(f"not valid TOML: {problem}", where=where) from None


def _named(key: str) -> str:
    """A key for an error text, unless it could be a credential in the wrong place."""
    return f"the key {shown(key)}" if _PLAIN.fullmatch(key) else "a key"


def _ascii(text: str) -> str:
    return text[:200].encode("ascii", "backslashreplace").decode("ascii")


class _Reader:
    """Turns parsed data into values. Every error names the place in the file."""

    def __init__(self, data: object, where: Places) -> None:
        self._where = where
        if not isinstance(data, dict):
            self._fail(f"the file holds {kind(data)}", expected=f"a table with {_ALL_KEYS}")
        self._data: dict[str, object] = data

    def read(self) -> PolicyDocument:
        for key in self._data:
            if key not in POLICY_KEYS:
                self._fail(f"{shown(key)} is not a key of a policy", key, expected=_ALL_KEYS, at_key=True)
        return PolicyDocument(
            (*self._rules("allow", deny=False), *self._rules("deny", deny=True)),
            tuple(self._hosts()),
            self._limits(),
            self._intercept(),
            self._secrets(),
            tuple(self._private_networks()),
            self._files(),
        )

    def _rules(self, key: str, *, deny: bool) -> Iterator[Rule]:
        for i, text in enumerate(self._strings(self._data.get(key, []), key)):
            try:
                yield read_rule(text, self._where(key, i), deny=deny)
            except RuleError as fault:
                where = self._where(key, i, offset=fault.offset)
                raise ConfigError(fault.public, where=str(where), expected=fault.expected) from None

    def _strings(self, value: object, *path: str) -> list[str]:
        """The value as a list of strings, or an error at the element that is not one."""
        name = _ascii(".".join(path))
        if not isinstance(value, list):
            self._fail(f"{name} is {kind(value)}", *path, expected="a list of strings")
        for i, each in enumerate(value):
            if not isinstance(each, str):
                self._fail(f"element {i + 1} of {name} is {kind(each)}", *path, i, expected="a string in quotes")
        return value

    def _hosts(self) -> Iterator[HostMapping]:
        for name, value in self._table("hosts").items():
            path, shown_as = ("hosts", name), f"hosts.{_ascii(name)}"
            if isinstance(value, dict):
                example = 'the whole name in quotes: "db.test" = "10.0.0.5"'
                self._fail(f"{shown_as} is a table", *path, expected=example, at_key=True)
            if isinstance(value, str):
                ips = [mapped_address(value, str(self._where(*path)))]
            else:
                texts = enumerate(self._strings(value, *path))
                ips = [mapped_address(text, str(self._where(*path, i))) for i, text in texts]
            if not ips:
                self._fail(f"{shown_as} has no address", *path, expected="at least one", at_key=True)
            yield mapped_name(name, str(self._where(*path, key=True))), tuple(dict.fromkeys(ips))

    def _private_networks(self) -> Iterator[Network]:
        key = "private_networks"
        for i, text in enumerate(self._strings(self._data.get(key, []), key)):
            yield parse_private_network(text, self._where(key, i))

    def _limits(self) -> dict[str, tuple[object, Source]]:
        limits: dict[str, tuple[object, Source]] = {}
        for name, value in self._table("limits").items():
            if not isinstance(value, (str, int, float)):  # bool is an int
                what = f"limits.{_ascii(name)} is {kind(value)}"
                self._fail(what, "limits", name, expected="a number, a string, true or false")
            limits[name] = (value, self._where("limits", name))
        return limits

    def _intercept(self) -> tuple[str, Source] | None:
        if "intercept" not in self._data:
            return None
        value = self._data["intercept"]
        if not isinstance(value, str):
            self._fail(f"intercept is {kind(value)}", "intercept", expected=_MODES)
        if value not in INTERCEPT_MODES:
            self._fail(f"{shown(value)} is not a way to intercept", "intercept", expected=_MODES)
        return value, self._where("intercept")

    def _secrets(self) -> SecretsTable | None:
        if "secrets" not in self._data:
            return None
        return SecretsTable(self._table("secrets"), self._where.below("secrets"))

    def _files(self) -> FileSettings | None:
        if "files" not in self._data:
            return None
        from exeat.policy.files import parse_files_table

        return parse_files_table(self._table("files"), self._where.below("files"))

    def _table(self, key: str) -> dict[str, object]:
        value = self._data.get(key, {})
        if not isinstance(value, dict):
            self._fail(f"{key} is {kind(value)}", key, expected=f"a table, [{key}]")
        return value

    def _fail(self, public: str, *path: str | int, expected: str, at_key: bool = False) -> NoReturn:
        raise self._where.fault(public, *path, expected=expected, at_key=at_key)


def kind(value: object) -> str:
    """What a value of a file is, for an error that must not show it."""
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case str():
            return "a string"
        case int() | float():
            return "a number"
        case list():
            return "a list"
        case dict():
            return "a table"
        case _:
            return "a date or time"


_LINE_FEED = "\n"
_BLANKS = " \t\r"
_COMMENT = re.compile(r"[ \t]#")
# A carriage return only before a line feed; no escape codes that recolour or hide a line when it is shown.
_CONTROL_IN_LISTING = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029]|\r(?!\n)")


def parse_listing(text: str, filename: str) -> tuple[Rule, ...]:
    """The rules of a list, in order, each with its line. Raises ConfigError with file:line:column."""
    if len(text) > MAX_DOCUMENT:
        raise ConfigError("the file is over 8 MiB", where=filename, expected="an allowlist, one rule a line")
    if bad := _CONTROL_IN_LISTING.search(text):
        start = text.rfind(_LINE_FEED, 0, bad.start()) + 1
        raise ConfigError(
            f"the file contains the character {shown(bad[0])}",
            where=f"{filename}:{text.count(_LINE_FEED, 0, start) + 1}:{bad.start() - start + 1}",
            expected="plain text, one rule a line",
        )
    rules = []
    for number, line in enumerate(text.removeprefix("\ufeff").split(_LINE_FEED), 1):
        rule = rule_part(line) if "#" in line else line.strip(_BLANKS)
        if rule:
            try:
                rules.append(read_rule(rule, Source(filename, number)))
            except RuleError as fault:
                column = line.index(rule) + fault.offset + 1
                raise ConfigError(
                    fault.public, where=f"{filename}:{number}:{column}", expected=fault.expected
                ) from None
    return tuple(rules)


def rule_part(line: str) -> str:
    """What is left of a line without its comment and the blanks around it; "" if it has no rule."""
    if line.lstrip(_BLANKS).startswith("#"):
        return ""
    comment = _COMMENT.search(line)
    return (line[: comment.start()] if comment else line).strip(_BLANKS)
