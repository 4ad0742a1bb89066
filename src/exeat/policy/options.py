"""The options of a rule: the words after its host."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, Final

from exeat.errors import ExeatError, ProtocolError
from exeat.policy.host import shown
from exeat.policy.path import canonical_path
from exeat.policy.rule import FLAGS
from exeat.sizes import UNITS, parse_size

_METHOD = re.compile(r"[A-Z][A-Z0-9!#$%&'*+.^_`~-]{0,31}")  # RFC 9110 §5.6.2 token, upper case, no "|"
_KNOWN = "private, force, proxy, no-intercept, allow_sni_mismatch, methods=GET|HEAD, paths=/a/**|/b or max_upload=10MB"


class RuleError(ExeatError):
    """What is wrong with a rule text, and at which character. Callers turn it into a ConfigError."""

    def __init__(self, public: str, offset: int, expected: str = "") -> None:
        super().__init__(public)
        self.offset = offset
        self.expected = expected


def _read_methods(value: str, offset: int) -> frozenset[str]:
    for method in value.split("|"):
        if not _METHOD.fullmatch(method):
            raise RuleError(f"{shown(method)} is not a method", offset, "upper-case methods, such as methods=GET|HEAD")
        offset += len(method) + 1
    return frozenset(value.split("|"))


def _read_paths(value: str, offset: int) -> tuple[str, ...]:
    for pattern in value.split("|"):
        _check_pattern(pattern, offset)
        offset += len(pattern) + 1
    return tuple(sorted(set(value.split("|"))))


def _check_pattern(pattern: str, offset: int) -> None:
    """A pattern must be canonical itself, or it would match nothing, without a word why."""
    if pattern[:1] != "/":
        raise RuleError(f"the path {shown(pattern)} does not start with a slash", offset, "paths=/repos/acme/**")
    try:
        canonical = canonical_path(pattern.encode("utf-8").decode("latin-1"))
    except (ProtocolError, UnicodeError) as error:
        public = error.public if isinstance(error, ProtocolError) else "the path is not valid text"
        raise RuleError(f"the path {shown(pattern)} cannot be used: {public}", offset, "paths=/repos/acme/**") from None
    if canonical != pattern:
        raise RuleError(f"the path {shown(pattern)} is not in canonical form", offset, f"paths={canonical}")
    at = 1
    for segment in pattern[1:].split("/"):
        if "**" in segment and segment != "**":
            raise RuleError(
                "** must stand alone between slashes", offset + at + segment.index("**"), "/a/**/b or /a*/b"
            )
        at += len(segment) + 1


def _read_size(value: str, offset: int) -> int:
    try:
        size = parse_size(value)
    except ValueError:
        size = 0
    if not 0 < size < 2**63:
        raise RuleError(f"{shown(value)} is not a size", offset, f"max_upload=10MB; {UNITS}")
    return size


_READERS: Final[dict[str, Callable[[str, int], object]]] = {
    "methods": _read_methods,
    "paths": _read_paths,
    "max_upload": _read_size,
}


def read_options(words: Iterable[tuple[int, str]]) -> tuple[dict[str, Any], dict[str, int]]:
    """The fields of a rule that its words set, and where each word begins. Unknown or doubled words are errors."""
    given: dict[str, Any] = {}
    at: dict[str, int] = {}
    for offset, word in words:
        key, equals, value = word.partition("=")
        value_at = offset + len(key) + 1
        if key in at:
            raise RuleError(f"the option {key} is given twice", offset, "each option once")
        if key in FLAGS:
            if equals:
                raise RuleError(f"the option {key} takes no value", value_at - 1, key)
            given[FLAGS[key]] = True
        elif key in _READERS:
            if not equals:
                raise RuleError(f"the option {key} needs a value", offset, _KNOWN)
            given[key] = _READERS[key](value, value_at)
        else:
            raise RuleError(f"{shown(word)} is not an option", offset, _KNOWN)
        at[key] = offset
    return given, at
