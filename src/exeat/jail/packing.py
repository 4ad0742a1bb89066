"""Plain values as bytes: one byte for the type, the length and a colon, and so many bytes, or values of a tuple."""

from types import GenericAlias
from typing import Any, Final

_MAX_DEPTH: Final = 6


def pack(value: object) -> bytes:
    match value:
        case None:
            return b"n0:"
        case bool():
            return b"t1:1" if value else b"t1:0"
        case int():
            tag, data = b"i", b"%d" % value
        case float():
            tag, data = b"f", repr(value).encode()
        case str():
            tag, data = b"s", value.encode("utf-8", "surrogatepass")
        case bytes():
            tag, data = b"b", value
        case tuple():
            return b"(%d:" % len(value) + b"".join(map(pack, value))
        case _:
            raise TypeError(type(value).__name__)
    return b"%c%d:" % (tag, len(data)) + data


def unpack(data: bytes, at: int, depth: int = _MAX_DEPTH) -> tuple[object, int]:
    colon = data.index(b":", at)
    digits = data[at + 1 : colon]
    if not digits.isdigit() or not depth:
        raise ValueError
    length, start = int(digits), colon + 1
    if data[at : at + 1] == b"(":
        items = []
        for _ in range(length):
            item, start = unpack(data, start, depth - 1)
            items.append(item)
        return tuple(items), start
    end = start + length
    if end > len(data):
        raise ValueError
    return _plain(data[at : at + 1], data[start:end]), end


def _plain(tag: bytes, data: bytes) -> object:
    match tag:
        case b"n":
            return None
        case b"t":
            return data == b"1"
        case b"i":
            return int(data)
        case b"f":
            return float(data)
        case b"s":
            return data.decode("utf-8", "surrogatepass")
        case b"b":
            return data
    raise ValueError


def fits(value: object, kind: Any) -> bool:
    if not isinstance(kind, GenericAlias):
        return kind is object or type(value) is kind
    items = kind.__args__
    if not isinstance(value, tuple):
        return False
    if items[-1] is Ellipsis:
        return all(fits(each, items[0]) for each in value)
    return len(value) == len(items) and all(map(fits, value, items))
