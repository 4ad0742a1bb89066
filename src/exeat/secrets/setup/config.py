"""Parses secrets: a secrets file, `[secrets.NAME]` of a policy, a variable. Text in, values out.

Every error names its place in the file and none shows what stands there: a value may stand in any wrong place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, NoReturn

from exeat.errors import ConfigError
from exeat.policy import Rule, Source
from exeat.policy.document import is_json, kind, parse_data
from exeat.policy.host import shown
from exeat.policy.options import RuleError
from exeat.secrets.model import DEFAULT_WHERE, Injection, SecretSpec, ValueSource, Where
from exeat.secrets.setup.hosts import MAX_HOSTS, read_host
from exeat.secrets.setup.placeholder import check_shape
from exeat.secrets.setup.together import combine

__all__ = ["MAX_SECRETS", "VARIABLE", "combine", "parse_secrets", "parse_secrets_table", "value_fault"]

VARIABLE: Final = "EXEAT_SECRETS_JSON"
MAX_SECRETS: Final = 500  # of one file
MAX_VALUE: Final = 64 * 1024  # bytes

Locate = Callable[..., Source]  # as exeat.policy.positions.Places: (*path, key=False, offset=0)

_TIMEOUT_S: Final = 30.0
_SOURCES: Final = ("value", "env", "file", "command")
_KEYS: Final = (
    *_SOURCES, "timeout_s", "refresh_s", "hosts", "placeholder", "shape", "inject", "where", "on_wrong_host",
    "aws_key_id",
)  # fmt: skip
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_CONTROL: Final = re.compile(rb"[\x00-\x1f\x7f]")
_PLACEHOLDER: Final = re.compile(r"[A-Za-z0-9._~-]{8,4096}")
_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,128}")
_FORM: Final = re.compile(r"[!-~](?:[ -~]{0,510}[!-~])?")
_HARMLESS: Final = re.compile(r"[a-z_]{1,16}")  # too short and too plain to be a credential
# They frame or route a message, or stay on one hop; what they say is the gateway's to decide.
_NOT_SET: Final = re.compile(
    r"accept-encoding|connection|content-(?:encoding|length|range)|expect|host|http2-settings|keep-alive|proxy-.*"
    r"|sec-websocket-.*|te|trailer|transfer-encoding|upgrade|via",
    re.IGNORECASE,
)
_EXAMPLE: Final = 'NAME = { env = "NAME", hosts = ["api.example.com"] }'


def parse_secrets(text: str, filename: str) -> tuple[SecretSpec, ...]:
    """Read a secrets file: JSON or TOML by its name, or the variable's JSON. Raises ConfigError.

    The secrets stand at the top level, or all of them in a table `secrets`.
    """
    data, where = parse_data(text, filename, as_json=filename == VARIABLE or is_json(filename))
    if not isinstance(data, dict):
        raise ConfigError(f"the file holds {kind(data)}", where=f"{filename}:1", expected=f"a table, {_EXAMPLE}")
    inner = data.get("secrets")
    if not isinstance(inner, dict):
        return parse_secrets_table(data, where)
    for key in data:
        if key != "secrets":
            raise ConfigError(
                f"{_named(key)} stands next to the table secrets",
                where=str(where(key, key=True)),
                expected="nothing but secrets in a secrets file; a policy can hold both",
            )
    return parse_secrets_table(inner, where.below("secrets"))


def parse_secrets_table(table: Mapping[str, object], where: Locate) -> tuple[SecretSpec, ...]:
    """Read NAME -> settings. `where` returns the place of what stands under a path in this table."""
    if len(table) > MAX_SECRETS:
        raise ConfigError(f"more than {MAX_SECRETS} secrets", where=str(where()), expected="fewer")
    return tuple(_Reader(name, settings, where).read() for name, settings in table.items())


def value_fault(value: bytes) -> str:
    """What keeps this from being a value, or nothing. It says where in the value, and not what is there."""
    if not value:
        return "the value is empty"
    if len(value) > MAX_VALUE:
        return "the value is over 64 KiB"
    if bad := _CONTROL.search(value):
        return f"the value has a control character at byte {bad.start() + 1} of {len(value)}"
    if value != value.strip(b" "):
        # A server takes them away from a header and repeats the rest, which would not be known for the value.
        return "the value has a blank at its beginning or its end"
    return ""


def _named(key: object) -> str:
    """A key for an error text. One that could be a credential in the wrong place is not shown."""
    return shown(key) if isinstance(key, str) and _HARMLESS.fullmatch(key) else "a key"


class _Reader:
    """One secret's settings."""

    def __init__(self, name: str, settings: object, where: Locate) -> None:
        self._where = where
        self._name = name
        self._label = ""
        if not _NAME.fullmatch(name):
            self._fail("not a name for a secret", "letters, digits and _, as for a variable: GITHUB_TOKEN", key=True)
        if name.startswith("EXEAT_"):
            self._fail("a secret's name cannot start with EXEAT_", "another name", key=True)
        self._label = f"{name}: "
        if not isinstance(settings, dict):
            self._fail(f"it is {kind(settings)}", f"a table: {_EXAMPLE}")
        self._settings: dict[str, object] = settings

    def read(self) -> SecretSpec:
        for key in self._settings:
            if key not in _KEYS:
                self._fail(f"{_named(key)} is not a setting of a secret", ", ".join(_KEYS), key, key=True)
        placeholder, shape = self._placeholder(), self._shape()
        if placeholder and shape:
            self._fail("placeholder and shape are both given", "one of them", "shape", key=True)
        inject = self._inject()
        return SecretSpec(
            name=self._name,
            source=self._source(),
            hosts=self._hosts(),
            written=self._where(self._name, key=True),
            placeholder=placeholder,
            shape=shape,
            inject=inject,
            where=self._parts(may_be_none=inject is not None),
            refuse_wrong_host=self._refuse_wrong_host(),
            aws_key_id=self._aws_key_id(),
        )

    def _source(self) -> ValueSource:
        given = [key for key in _SOURCES if key in self._settings]
        if len(given) != 1:
            place = given[1:2]
            problem = f"{given[0]} and {given[1]} are both given" if given else "it has no source for its value"
            self._fail(problem, "one of value, env, file and command", *place, key=True)
        if given != ["command"]:
            for key in ("timeout_s", "refresh_s"):
                if key in self._settings:
                    self._fail(f"{key} is for a command", "no such key", key, key=True)
        match given[0]:
            case "value":
                return ValueSource(value=self._value())
            case "env":
                text = self._text("env", "the name of a variable")
                if not _NAME.fullmatch(text):
                    self._fail("env is not the name of a variable", 'such as "GITHUB_TOKEN"', "env")
                return ValueSource(env=text)
            case "file":
                text = self._text("file", "the path of a file")
                if not text or not text.isprintable():
                    self._fail("file is not a path", 'such as "/run/secrets/token"', "file")
                return ValueSource(file=text)
            case _:
                return self._command()

    def _value(self) -> str:
        text = self._text("value", "the value in quotes")
        try:
            fault = value_fault(text.encode())
        except UnicodeEncodeError:
            fault = "the value is not valid text"
        if fault:
            self._fail(fault, "one line of text", "value")
        return text

    def _command(self) -> ValueSource:
        expected = 'a list of strings, such as ["gh", "auth", "token"]'
        argv = self._list("command", expected)
        if not argv or not argv[0]:
            self._fail("command is empty", expected, "command")
        for i, word in enumerate(argv):
            if "\0" in word or not _is_text(word):
                self._fail(f"element {i + 1} of command cannot be an argument", "text without NUL", "command", i)
        return ValueSource(
            command=tuple(argv),
            timeout_s=self._seconds("timeout_s", 0.1, 600) or _TIMEOUT_S,
            refresh_s=self._seconds("refresh_s", 1, 30 * 24 * 3600),
        )

    def _seconds(self, key: str, low: float, high: float) -> float | None:
        if key not in self._settings:
            return None
        value = self._settings[key]
        expected = f"seconds, from {low} to {high}"
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self._fail(f"{key} is {kind(value)}", expected, key)
        if not low <= value <= high:  # false for NaN too
            self._fail(f"{key} is out of range", expected, key)
        return float(value)

    def _hosts(self) -> tuple[Rule, ...]:
        expected = 'at least one host: hosts = ["api.example.com"]'
        if "hosts" not in self._settings:
            self._fail("it has no hosts", expected, key=True)
        texts = self._list("hosts", expected)
        if not 0 < len(texts) <= MAX_HOSTS:
            self._fail(f"hosts has {len(texts)} elements", f"from 1 to {MAX_HOSTS} hosts", "hosts")
        rules = []
        for i, text in enumerate(texts):
            try:
                rules.append(read_host(text, self._where(self._name, "hosts", i)))
            except RuleError as fault:
                self._fail(fault.public, fault.expected, "hosts", i, offset=fault.offset)
        return tuple(dict.fromkeys(rules))

    def _placeholder(self) -> str:
        expected = "8 to 4096 letters, digits, '.', '_', '~' and '-'"
        text = self._text("placeholder", expected) if "placeholder" in self._settings else None
        if text is not None and not _PLACEHOLDER.fullmatch(text):
            self._fail("the placeholder cannot be used", expected, "placeholder")
        return text or ""

    def _shape(self) -> str:
        if "shape" not in self._settings:
            return ""
        value = self._settings["shape"]
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            self._fail(f"shape is {kind(value)}", 'a string such as "sk-", or a length', "shape")
        try:
            return check_shape(value)
        except ValueError as error:
            self._fail("there is no such shape", str(error), "shape")

    def _inject(self) -> Injection | None:
        if "inject" not in self._settings:
            return None
        table, expected = self._settings["inject"], '{ header = "Authorization", format = "Bearer {value}" }'
        if not isinstance(table, dict):
            self._fail(f"inject is {kind(table)}", expected, "inject")
        for key, value in table.items():
            if key not in ("header", "format"):
                self._fail(f"{_named(key)} is not a setting of inject", expected, "inject", key, key=True)
            if not isinstance(value, str):
                self._fail(f"inject.{key} is {kind(value)}", "a string in quotes", "inject", key)
        if "header" not in table:
            self._fail("inject names no header", expected, "inject", key=True)
        header, form = table["header"], table.get("format", "{value}")
        if not _TOKEN.fullmatch(header):
            self._fail("inject.header is not the name of a header", 'such as "Authorization"', "inject", "header")
        if _NOT_SET.fullmatch(header):
            self._fail(f"the header {header} cannot be set", "one that is not for proxies", "inject", "header")
        if form.count("{value}") != 1:
            self._fail("inject.format does not contain {value} exactly once", '"Bearer {value}"', "inject", "format")
        if not _FORM.fullmatch(form):
            self._fail("inject.format is not a header's value", "up to 512 characters of ASCII", "inject", "format")
        return Injection(header, form)

    def _parts(self, *, may_be_none: bool) -> frozenset[Where]:
        if "where" not in self._settings:
            return DEFAULT_WHERE
        expected = f"a list of {', '.join(Where)}"
        parts = self._list("where", expected)
        for i, part in enumerate(parts):
            if part not in tuple(Where):
                self._fail(f"element {i + 1} of where is not a part of a request", expected, "where", i)
        if not parts and not may_be_none:
            self._fail("where is empty, and there is no inject: it would never be used", expected, "where")
        return frozenset(Where(part) for part in parts)

    def _aws_key_id(self) -> str:
        if "aws_key_id" not in self._settings:
            return ""
        name = self._text("aws_key_id", "the name of another secret")
        if not _NAME.fullmatch(name) or name == self._name:
            self._fail("aws_key_id is not the name of another secret", 'such as "AWS_ACCESS_KEY_ID"', "aws_key_id")
        return name

    def _refuse_wrong_host(self) -> bool:
        if "on_wrong_host" not in self._settings:
            return True
        expected = '"refuse" or "pass"'
        text = self._text("on_wrong_host", expected)
        if text not in ("refuse", "pass"):
            self._fail('on_wrong_host is neither "refuse" nor "pass"', expected, "on_wrong_host")
        return text == "refuse"

    def _text(self, key: str, expected: str) -> str:
        value = self._settings[key]
        if not isinstance(value, str):
            self._fail(f"{key} is {kind(value)}", expected, key)
        return value

    def _list(self, key: str, expected: str) -> list[str]:
        value = self._settings[key]
        if not isinstance(value, list):
            self._fail(f"{key} is {kind(value)}", expected, key)
        for i, each in enumerate(value):
            if not isinstance(each, str):
                self._fail(f"element {i + 1} of {key} is {kind(each)}", expected, key, i)
        return value

    def _fail(self, public: str, expected: str, *path: str | int, key: bool = False, offset: int = 0) -> NoReturn:
        place = self._where(self._name, *path, key=key, offset=offset)
        raise ConfigError(f"{self._label}{public}", where=str(place), expected=expected)


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
