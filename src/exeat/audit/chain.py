"""The hash chain over lines, without I/O.

A line is `{"seq":N,"chain":"ID",<record>,"policy":"…","hash":"…"}`. Its hash covers the hash of the line
before it and every byte of the line up to `,"hash"`, so no byte can change without a trace.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import NamedTuple

GENESIS = "0" * 64
"""The hash before the first line."""

_HEAD = re.compile(
    rb'\{"seq":([1-9][0-9]{0,17}),"chain":"([fs][0-9a-f]{16})","time":"[0-9T:.Z-]{27}"'
    rb',"event":"([ !#-\[\]-~]*(?:\\[ -~][ !#-\[\]-~]*)*)"'  # Any JSON string in ASCII.
)
_TAIL = re.compile(rb',"hash":"([0-9a-f]{64})"\}\n')
_TAIL_BYTES = 76


class Line(NamedTuple):
    """A line of the right shape. Nothing is said yet about whether it is genuine."""

    seq: int
    chain: str
    event: str
    body: bytes
    stated: str
    fields_at: int


def seal(previous: str, body: bytes) -> str:
    """The hash of a line, given the hash of the line before it."""
    return sha256(previous.encode("ascii") + body).hexdigest()


def seal_lines(bodies: list[str], chain: str, seq: int, previous: str) -> tuple[list[bytes], str]:
    """Whole lines for `bodies`, the first with number `seq + 1`, and the hash of the last."""
    lines = []
    digest = previous.encode("ascii")
    for body in bodies:
        seq += 1
        # A stray non-ASCII character must not make the batch fail for ever: it is escaped, badly but safely.
        start = f'{{"seq":{seq},"chain":"{chain}",{body}'.encode("ascii", "backslashreplace")
        digest = sha256(digest + start).hexdigest().encode("ascii")  # `seal`, written out: a fifth less for each line
        lines.append(start + b',"hash":"' + digest + b'"}\n')
    return lines, digest.decode("ascii")


def stated_hash(line: bytes) -> str:
    """The hash at the end of a line that we made."""
    return line[-67:-3].decode("ascii")


def parse_line(line: bytes) -> Line | None:
    """The parts of a complete line, or None if it does not have the one shape that we write."""
    head = _HEAD.match(line)
    tail = _TAIL.fullmatch(line, max(len(line) - _TAIL_BYTES, 0))
    if head is None or tail is None or head.end() > tail.start():
        return None
    seq, chain, event = head.groups()
    return Line(int(seq), chain.decode(), event.decode(), line[: tail.start()], tail[1].decode(), head.end())
