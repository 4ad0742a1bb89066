"""The forms of a value: as it must be written in a request body, and as it may come back in a response."""

from __future__ import annotations

import re
from binascii import b2a_base64
from collections.abc import Iterator
from typing import Final

# A short value has forms of a few characters, which would be found in any text by accident.
_MIN_ENCODED: Final = 8
_UNRESERVED: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
# What encoders leave as it is: RFC 3986's strictest, a path, encodeURIComponent, encodeURI, HTML forms, nothing.
_PERCENT_SAFE: Final = (
    _UNRESERVED,
    _UNRESERVED | frozenset(b"/"),
    _UNRESERVED | frozenset(b"!'()*"),
    _UNRESERVED | frozenset(b"!'()*;/?:@&=+$,#"),
    _UNRESERVED - frozenset(b"~") | frozenset(b"*"),
    frozenset[int](),
)
_URL_SAFE: Final = bytes.maketrans(b"+/", b"-_")
_JSON_SHORT: Final = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_JSON_MUST: Final = re.compile(r'["\\\x00-\x1f]')
# What else encoders escape as \uXXXX: nothing, all but ASCII (with DEL or without), what is special in HTML (two
# lists), everything.
_JSON_MORE: Final = tuple(
    re.compile(more)
    for more in (
        r"(?!)",
        r"[^\x00-\x7e]",
        r"[^\x00-\x7f]",
        r"[<>&\u2028\u2029]",
        r"""[^\x00-\x7e]|[<>&'"+`]""",
        r"(?s:.)",
    )
)
# What stands for the characters that are special in HTML and XML; encoders differ in the quotes.
_TEXT: Final = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
# In an attribute, white space would become a blank if it stood there as it is.
_XML: Final = _TEXT | {'"': "&quot;", "'": "&apos;", "\t": "&#9;", "\n": "&#10;", "\r": "&#13;"}
_MARKUP: Final = (
    {"&": "&amp;", "<": "&lt;"},
    _TEXT,
    _TEXT | {'"': "&quot;"},
    _TEXT | {'"': "&quot;", "'": "&#39;"},
    _TEXT | {'"': "&quot;", "'": "&#x27;"},
    _TEXT | {'"': "&quot;", "'": "&apos;"},
    _TEXT | {'"': "&#34;", "'": "&#39;"},
    _TEXT | {'"': "&#34;", "'": "&#39;", "+": "&#43;"},
    _TEXT | {"\t": "&#9;", "\n": "&#10;", "\r": "&#13;"},
    _TEXT | {'"': "&quot;", "\t": "&#9;", "\n": "&#10;", "\r": "&#13;"},
    _XML,
)
_JSON_TYPES: Final = frozenset(
    (b"application/json", b"text/json", b"application/x-ndjson", b"application/ndjson", b"application/jsonl")
)
_XML_TYPES: Final = frozenset((b"application/xml", b"text/xml"))


def escape_for(content_type: bytes, value: bytes) -> bytes:
    """The value as it must stand inside a string of a request body of this type, so that its reader gets the value."""
    kind = content_type.partition(b";")[0].strip(b" \t").lower()
    if kind in _JSON_TYPES or kind.endswith(b"+json"):
        return _json_string(value.decode("latin-1")).encode("latin-1")  # byte by byte: it need not be text
    if kind == b"application/x-www-form-urlencoded":
        return percent_encoded(value)
    if kind in _XML_TYPES or kind.endswith(b"+xml"):
        return _marked_up(value.decode("latin-1"), _XML).encode("latin-1")
    return value


def percent_encoded(value: bytes) -> bytes:
    """For a query, a path or a form: everything but unreserved characters is encoded."""
    return _percent(value, _UNRESERVED, b"%%%02X")


def reflected_forms(value: bytes) -> tuple[bytes, ...]:
    """Every form in which a server may send a value back. The first is the value itself; none is empty or twice here.

    Not found are forms of forms (JSON within JSON), base64 that is broken into lines, and what a server makes up to
    hide a value: this is against a server that repeats what it was sent, not one that means to give it away.
    """
    if not value:
        return ()
    if len(value) < _MIN_ENCODED:
        return (value,)
    forms: dict[bytes, None] = {value: None}  # keeps the order
    for form in _all_forms(value):
        forms[form] = None
    return tuple(forms)


def _all_forms(value: bytes) -> Iterator[bytes]:
    for offset in range(3):
        yield from _base64_forms(_base64_core(value, offset))
    yield value.hex().encode()
    yield value.hex().upper().encode()
    for safe in _PERCENT_SAFE:
        for pattern in (b"%%%02X", b"%%%02x"):
            encoded = _percent(value, safe, pattern)
            yield encoded
            yield encoded.replace(b"%20", b"+")
    for text in _as_text(value):
        yield text.encode()
        yield from _json_forms(text)
        for table in _MARKUP:
            marked = _marked_up(text, table)
            yield marked.encode()
            yield marked.encode("ascii", "xmlcharrefreplace")


def _as_text(value: bytes) -> Iterator[str]:
    """As a server may read it: UTF-8, and as many read a header, Latin-1."""
    try:
        yield value.decode()
    except UnicodeDecodeError:
        pass
    yield value.decode("latin-1")


def _base64_core(value: bytes, offset: int) -> bytes:
    """The characters that depend on the value alone, when it begins `offset` bytes into a group of three."""
    encoded = b2a_base64(bytes(offset) + value, newline=False)
    first = -(-8 * offset // 6)
    return encoded[first : 8 * (offset + len(value)) // 6]


def _base64_forms(core: bytes) -> Iterator[bytes]:
    """Both alphabets. Of the standard one, two characters are escaped in their turn, in URLs and by JSON encoders."""
    yield core
    yield core.translate(_URL_SAFE)
    for plus in (b"+", b"%2B", b"%2b", b"\\u002B", b"\\u002b", b"&#43;"):
        for slash in (b"/", b"%2F", b"%2f", b"\\/", b"\\u002F", b"\\u002f"):
            yield core.replace(b"+", plus).replace(b"/", slash)


def _percent(value: bytes, safe: frozenset[int], pattern: bytes) -> bytes:
    return b"".join([bytes((each,)) if each in safe else pattern % each for each in value])


def _json_forms(text: str) -> Iterator[bytes]:
    for more in _JSON_MORE:
        for pattern in ("\\u%04x", "\\u%04X"):
            escaped = _json_string(text, more, pattern)
            yield escaped.encode()
            yield escaped.replace("/", "\\/").encode()


def _json_string(text: str, more: re.Pattern[str] = _JSON_MORE[0], pattern: str = "\\u%04x") -> str:
    """The inside of a JSON string. Characters that `more` finds are written as numbers, whatever else they could be."""

    def escape(character: str) -> str:
        if more.match(character):
            units = character.encode("utf-16-be", "surrogatepass")
            return "".join([pattern % int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2)])
        if _JSON_MUST.match(character):
            return _JSON_SHORT.get(character) or pattern % ord(character)
        return character

    return "".join([escape(character) for character in text])


def _marked_up(text: str, table: dict[str, str]) -> str:
    return "".join([table.get(character, character) for character in text])
