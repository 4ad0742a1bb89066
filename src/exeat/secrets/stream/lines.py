"""The header lines of a head, as the parsers pass them on: `\\r\\nName: value` once for each, and no end.

They are looked at and changed as bytes, line by line, so that what is not changed stays as it was sent.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

Line = re.Pattern[bytes]


def line_named(name: bytes) -> Line:
    """Finds the lines of one field, by its name in any case. Group 1 is the name and what follows it, 2 the value."""
    return re.compile(rb"\r\n(" + re.escape(name) + rb":[ \t]*+)([^\r\n]*+)", re.IGNORECASE)


CONTENT_TYPE: Final = line_named(b"content-type")
CONTENT_ENCODING: Final = line_named(b"content-encoding")
CONTENT_LENGTH: Final = line_named(b"content-length")


def values_of(passed: bytes, line: Line) -> list[bytes]:
    return [found[2].rstrip(b" \t") for found in line.finditer(passed)]


def first_value(passed: bytes, line: Line) -> bytes:
    """The value of the first such line, or nothing."""
    found = line.search(passed)
    return b"" if found is None else found[2].rstrip(b" \t")


def without(passed: bytes, line: Line) -> bytes:
    return line.sub(b"", passed)


def content_coding(passed: bytes) -> bytes:
    """How the body is coded; nothing if it is as it is."""
    coding = b", ".join(values_of(passed, CONTENT_ENCODING)).strip(b" \t,").lower()
    return b"" if coding == b"identity" else coding


def is_grpc(passed: bytes) -> bool:
    """Whether the body is made of messages with their lengths in front."""
    return first_value(passed, CONTENT_TYPE)[:16].lower() == b"application/grpc"


def change_lines(passed: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """Change each line, given without its line ending."""
    return b"\r\n".join([change(line) if line else line for line in passed.split(b"\r\n")])
