"""How encoders write a text: percent-encoding, JSON strings, HTML and XML. Each way is a table for `str.translate`.

A table has only characters that are in the text and are written otherwise, so that ways which do not differ for a text
are equal. What encoders are known to do comes first. Behind that comes every choice of the characters on which
encoders differ, as long as there are few of these in the text.
"""

from __future__ import annotations

import encodings.utf_16_be  # noqa: F401 - no codec can be loaded once imports are sealed
from collections.abc import Callable, Iterable, Iterator
from itertools import combinations
from typing import Final

Table = dict[int, str]
Write = Callable[[str], str]

_PLAIN: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._")
# Reserved in a URL, or once was: some encode it and some do not. All else but _PLAIN is always encoded.
_PERCENT_OPEN: Final = frozenset("!#$&'()*+,/:;=?@[]~")
# What encoders leave of these: RFC 3986's strictest, a path, encodeURIComponent, encodeURI, HTML forms, Java's and
# PHP's, JavaScript's escape, Go's path segment, RFC 3986's, its path, its query, Spring's parameter of a query.
_PERCENT_LEFT: Final = (
    "~", "~/", "~!'()*", "~!'()*;/?:@&=+$,#", "*", "", "@*+/", "~$&+:=@", "~!$&'()*+,;=:@", "~!$&'()*+,;=:@/",
    "~!$&'()*+,;=:@/?", "~!$'()*+,;:@/?",
)  # fmt: skip
_PERCENT_MOST: Final = 5  # characters of which every choice is made
_MOST: Final = 3  # the same, where there are more ways to write each

_JSON_SHORT: Final = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_JSON_OPEN: Final = frozenset("=<>&'/+`")
_LINES: Final = "\u2028\u2029"
# What encoders write as \uXXXX, and whether they do so with all that is not ASCII: plain ones, with DEL and without;
# Go and Rails; Gson; .NET; PHP, Django and Flask, so that it may stand in HTML; serialize-javascript.
_JSON_NUMBERED: Final = (
    ("", False), ("", True), ("\x7f", True), ("<>&" + _LINES, False), ("<>&='" + _LINES, False),
    ("<>&'\"+`\x7f", True), ("<>&'\"", True), ("<>&", True), ("<>&'", True), ("<>/" + _LINES, False),
)  # fmt: skip

_TEXT: Final = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_SPACES: Final = {"\t": "&#9;", "\n": "&#10;", "\r": "&#13;"}
# In an attribute, white space would become a blank if it stood there as it is.
XML: Final = _TEXT | _SPACES | {'"': "&quot;", "'": "&apos;"}
_MARKUP: Final = (
    {"&": "&amp;", "<": "&lt;"},
    _TEXT,
    _TEXT | {'"': "&quot;"},
    _TEXT | {'"': "&quot;", "'": "&#39;"},
    _TEXT | {'"': "&quot;", "'": "&#039;"},  # PHP
    _TEXT | {'"': "&quot;", "'": "&#x27;"},
    _TEXT | {'"': "&quot;", "'": "&apos;"},
    _TEXT | {'"': "&#34;", "'": "&#39;"},
    _TEXT | {'"': "&#34;", "'": "&#39;", "+": "&#43;"},  # Go
    _TEXT | {'"': "&#34;", "'": "&#39;", "+": "&#43;", "=": "&#61;", "`": "&#96;", " ": "&#32;"},  # not in quotes
    _TEXT | {'"': "&quot;", "'": "&#x27;", "+": "&#x2B;", "`": "&#x60;"},  # .NET
    _TEXT | {'"': "&quot;", "'": "&#x27;", "`": "&#x60;"},  # Underscore
    _TEXT | {'"': "&quot;", "'": "&#x27;", "`": "&#x60;", "=": "&#x3D;"},  # Handlebars
    _TEXT | {'"': "&quot;", "'": "&#39;", "`": "&#x60;", "=": "&#x3D;", "/": "&#x2F;"},  # mustache.js
    _TEXT | {'"': "&quot;", "'": "&#x27;", "/": "&#x2F;"},  # Rack, and as OWASP recommends
    _TEXT | {'"': "&quot;", "'": "&#x27;", "/": "&#x2f;"},
    _TEXT | _SPACES,
    _TEXT | _SPACES | {'"': "&quot;"},
    XML,
)
_MARKUP_OPEN: Final = frozenset("=/+'\"`")
_MARKUP_LEFT: Final = _PLAIN | frozenset(",")  # by those that write all else as numbers


def percent_writer(*, upper: bool) -> Write:
    """Writes a character that stands for one byte."""
    return lambda character: f"%{ord(character):02X}" if upper else f"%{ord(character):02x}"


def json_writer(*, upper: bool) -> Write:
    def write(character: str) -> str:
        units = character.encode("utf-16-be", "surrogatepass").hex()
        units = units.upper() if upper else units
        return "".join([f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4)])

    return write


_MARKUP_WRITERS: Final[tuple[Write, ...]] = (
    lambda character: f"&#{ord(character)};",
    lambda character: f"&#x{ord(character):X};",
    lambda character: f"&#x{ord(character):x};",
)


def percent_known(text: str) -> Iterator[Table]:
    """The ways of well-known encoders. The characters of the text stand for bytes."""
    characters = frozenset(text)
    for left in _PERCENT_LEFT:
        yield from _percent_tables(characters - _PLAIN - frozenset(left))
    yield from _percent_tables(characters)


def percent_chosen(text: str) -> Iterator[Table]:
    """Every choice of the reserved characters in the text."""
    characters = frozenset(text) - _PLAIN
    for chosen in _choices(characters & _PERCENT_OPEN, _PERCENT_MOST):
        yield from _percent_tables(characters - _PERCENT_OPEN | chosen)


def _percent_tables(encoded: Iterable[str]) -> Iterator[Table]:
    for upper in (True, False):
        table = _numbered(encoded, percent_writer(upper=upper))
        yield table
        if ord(" ") in table:
            yield table | {ord(" "): "+"}


def json_known(text: str) -> Iterator[Table]:
    characters = frozenset(text)
    for numbered, with_others in _JSON_NUMBERED:
        others = {each for each in characters if each > "\x7f"} if with_others else set()
        yield from _json_tables(characters, characters & frozenset(numbered) | others)
    yield from _json_tables(characters, characters)


def json_chosen(text: str) -> Iterator[Table]:
    characters = frozenset(text)
    for chosen in _choices(characters & _JSON_OPEN, _MOST):
        yield from _json_tables(characters, chosen)


def _json_tables(characters: frozenset[str], numbered: Iterable[str]) -> Iterator[Table]:
    for upper in (False, True):
        write = json_writer(upper=upper)
        table = json_table(characters, write) | _numbered(numbered, write)
        yield table
        if "/" in characters and ord("/") not in table:
            yield table | {ord("/"): "\\/"}


def json_table(characters: Iterable[str], write: Write) -> Table:
    """What every encoder must escape."""
    return {ord(each): _JSON_SHORT.get(each) or write(each) for each in characters if each in _JSON_SHORT or each < " "}


def markup_known(text: str) -> Iterator[Table]:
    characters = frozenset(text)
    for written in _MARKUP:
        yield markup_table(characters, written)
    for write in _MARKUP_WRITERS[1:]:
        table = _numbered((each for each in characters - _MARKUP_LEFT if not each.isalnum()), write)
        yield table
        yield table | markup_table(characters, _TEXT | {'"': "&quot;"})


def markup_chosen(text: str) -> Iterator[Table]:
    characters = frozenset(text)
    for chosen in _choices(characters & _MARKUP_OPEN, _MOST):
        for write in _MARKUP_WRITERS:
            yield markup_table(characters, _TEXT) | _numbered(chosen, write)


def markup_table(characters: Iterable[str], written: dict[str, str]) -> Table:
    return {ord(each): written[each] for each in characters if each in written}


def _numbered(characters: Iterable[str], write: Write) -> Table:
    return {ord(each): write(each) for each in characters}


def _choices(characters: Iterable[str], most: int) -> Iterator[frozenset[str]]:
    """Every choice of some of the characters; none at all if there are too many."""
    listed = sorted(characters)
    if len(listed) <= most:
        for size in range(1, len(listed) + 1):
            yield from map(frozenset, combinations(listed, size))
