"""The forms of a value: as it must be written in a request body, and as it may come back in a response."""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Iterable, Iterator
from itertools import chain, zip_longest
from typing import Final

from exeat.secrets.stream import escapes
from exeat.secrets.stream.escapes import Table

# A short value has forms of a few characters, which would be found in any text by accident.
_MIN_ENCODED: Final = 8
# Every form costs time in every response, and memory. Of a long value the unlikely ones are left out.
_MAX_FORMS: Final = 200
_MAX_BYTES: Final = 8 << 20
_MAX_UNLIKELY: Final = 128 << 10  # bytes, the likely ones included
_UNRESERVED: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~"
_PERCENT: Final = {
    byte: escapes.percent_writer(upper=True)(chr(byte)) for byte in range(256) if byte not in _UNRESERVED
}
_URL_SAFE: Final = bytes.maketrans(b"+/", b"-_")
_JSON_TYPES: Final = frozenset(
    (b"application/json", b"text/json", b"application/x-ndjson", b"application/ndjson", b"application/jsonl")
)
_XML_TYPES: Final = frozenset((b"application/xml", b"text/xml"))


def escape_for(content_type: bytes, value: bytes) -> bytes:
    """The value as it must stand inside a string of a request body of this type, so that its reader gets the value."""
    kind = content_type.partition(b";")[0].strip(b" \t").lower()
    text = value.decode("latin-1")  # byte by byte: it need not be text
    if kind in _JSON_TYPES or kind.endswith(b"+json"):
        return text.translate(escapes.json_table(set(text), escapes.json_writer(upper=False))).encode("latin-1")
    if kind == b"application/x-www-form-urlencoded":
        return percent_encoded(value)
    if kind in _XML_TYPES or kind.endswith(b"+xml"):
        return text.translate(escapes.markup_table(set(text), escapes.XML)).encode("latin-1")
    return value


def percent_encoded(value: bytes) -> bytes:
    """For a query, a path or a form: everything but unreserved characters is encoded."""
    return value.decode("latin-1").translate(_PERCENT).encode("ascii")


def reflected_forms(value: bytes) -> tuple[bytes, ...]:
    """The forms in which a server may send a value back. The first is the value itself; none is empty or twice here.

    Not found are forms of forms (JSON within JSON), base64 that is broken into lines, and what a server makes up to
    hide a value: this is against a server that repeats what it was sent, not one that means to give it away. Not kept
    here, where all gateways would share them.
    """
    if not value:
        return ()
    if len(value) < _MIN_ENCODED:
        return (value,)
    forms: dict[bytes, None] = {value: None}  # keeps the order
    _add(forms, _likely_forms(value), _MAX_BYTES)
    _add(forms, _unlikely_forms(value), _MAX_UNLIKELY)
    return tuple(forms)


def _add(forms: dict[bytes, None], more: Iterable[bytes], most_bytes: int) -> None:
    size = sum(map(len, forms))
    for form in more:
        if len(forms) >= _MAX_FORMS or size + len(form) > most_bytes:
            return
        if form not in forms:
            size += len(form)
            forms[form] = None


def _likely_forms(value: bytes) -> Iterator[bytes]:
    """By well-known encoders."""
    for core in _base64_cores(value):
        yield core
        yield core.translate(_URL_SAFE)
    yield value.hex().encode()
    yield value.hex().upper().encode()
    as_bytes = value.decode("latin-1")
    yield from _written(as_bytes, escapes.percent_known(as_bytes), "latin-1")
    for text in _as_text(value):
        yield text.encode()
        yield from _written(text, escapes.json_known(text))
        yield from _written(text, escapes.markup_known(text))
        if not text.isascii():
            for form in _written(text, escapes.markup_known(text)):
                yield form.decode().encode("ascii", "xmlcharrefreplace")


def _unlikely_forms(value: bytes) -> Iterator[bytes]:
    """By encoders that we may not know. The ways take turns, so that none is left out as a whole."""
    as_bytes, text = value.decode("latin-1"), _as_text(value)[0]
    turns = zip_longest(
        _written(as_bytes, escapes.percent_chosen(as_bytes), "latin-1"),
        _written(text, escapes.json_chosen(text)),
        _written(text, escapes.markup_chosen(text)),
        chain.from_iterable(map(_escaped_base64, _base64_cores(value))),
    )
    return (form for turn in turns for form in turn if form is not None)


def _written(text: str, tables: Iterable[Table], encoding: str = "utf-8") -> Iterator[bytes]:
    """The text by each table. Most are equal for most texts, and writing a long text takes time."""
    done: set[frozenset[tuple[int, str]]] = set()
    for table in tables:
        key = frozenset(table.items())
        if key not in done:
            done.add(key)
            yield text.translate(table).encode(encoding)


def _as_text(value: bytes) -> list[str]:
    """As a server may read it: UTF-8, and as many read a header, Latin-1."""
    latin = value.decode("latin-1")
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return [latin]
    return [text] if text == latin else [text, latin]


def _base64_cores(value: bytes) -> Iterator[bytes]:
    """The characters that depend on the value alone, when it begins 0, 1 or 2 bytes into a group of three."""
    for offset in range(3):
        encoded = b2a_base64(bytes(offset) + value, newline=False)
        first = -(-8 * offset // 6)
        yield encoded[first : 8 * (offset + len(value)) // 6]


def _escaped_base64(core: bytes) -> Iterator[bytes]:
    """Two characters of the standard alphabet are escaped in their turn: in URLs, by JSON encoders, in HTML."""
    for plus in (b"+", b"%2B", b"%2b", b"\\u002B", b"\\u002b"):
        for slash in (b"/", b"%2F", b"%2f", b"\\/", b"\\u002F", b"\\u002f"):
            yield core.replace(b"+", plus).replace(b"/", slash)
    text = core.decode("ascii")
    yield from _written(text, escapes.markup_chosen(text))
