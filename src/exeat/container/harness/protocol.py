"""The frames that client and harness exchange, and what may be in them. Pure: no I/O.

    frame = u32 length of the rest | u32 length of the head | head (JSON) | blob (bytes)

A head is a request `{"id", "method", "params"}`, an answer `{"id", "result"}` or `{"id", "error"}`, or a notification
without an id. Bytes that no one has to interpret on the way (output, results, arguments, files) are the blob.

    -> call    {tool, limits}         blob: the arguments, JSON
    <-         result {kind}          blob: the value; or error {code, message, signal}
    -> bind    {variables, files}     blob: the files
    <-         result {files}
    -> cancel  {id}
    <- hello   {protocol, version, tools, scoped}
    <- output  {id, stream}           blob: what was written

`harness.py` writes the same format without this module, since it runs where exeat is not installed. What it sends may
be a tool's doing: everything here that reads assumes so.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from exeat.errors import ProtocolError

PROTOCOL: Final = 1
MAX_HEAD: Final = 64 << 10
MAX_REQUEST: Final = 32 << 20  # as in harness.py
MAX_DEPTH: Final = 64
MAX_DIGITS: Final = 400  # of a whole number; a double has no more than 309
MIN_ANSWER: Final = 256 << 10  # an exception with its traceback, or a piece of output
_PREFIX: Final = struct.Struct(">II")


@dataclass(frozen=True, slots=True)
class Frame:
    """One message: a head that is a JSON object, and bytes."""

    head: dict[str, Any]
    blob: bytes = b""


def encode_frame(frame: Frame) -> bytes:
    head = json.dumps(frame.head, allow_nan=False).encode()
    return _PREFIX.pack(4 + len(head) + len(frame.blob), len(head)) + head + frame.blob


class FrameReader:
    """Bytes in, frames out. Holds at most one frame of `max_blob` and what came in the same read."""

    def __init__(self) -> None:
        self.max_blob = MIN_ANSWER
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that are complete. ProtocolError if they are none: nothing after that can be read."""
        self._buffer += data
        while len(self._buffer) >= _PREFIX.size:
            total, size = _PREFIX.unpack_from(self._buffer)
            if size > MAX_HEAD or total < 4 + size or total > 4 + size + self.max_blob:
                raise ProtocolError("the sandbox sent a frame that is larger than agreed, or malformed")
            if len(self._buffer) < 4 + total:
                return
            start = _PREFIX.size + size
            head = read_json(bytes(self._buffer[_PREFIX.size : start]))
            blob = bytes(self._buffer[start : 4 + total])
            del self._buffer[: 4 + total]
            if not isinstance(head, dict):
                raise ProtocolError("the sandbox sent a message that is not an object")
            yield Frame(head, blob)


def read_json(data: bytes) -> Any:
    """A JSON value as strict as JSON is: no NaN, no infinite number, no text that cannot be encoded, nothing deep."""
    try:
        value = json.loads(data.decode(), parse_constant=_refuse, parse_float=_read_float, parse_int=_read_int)
    except (ValueError, RecursionError) as error:
        raise ProtocolError("the sandbox sent something that is not JSON", detail=type(error).__name__) from None
    _check(value)
    return value


def _refuse(text: str) -> Any:
    raise ValueError(text)


def _read_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("a number that is too large")
    return value


def _read_int(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError("a number that is too long")
    return int(text)


def _check(value: Any) -> None:
    """Level by level, not by recursion: what is read here must be safe for those who do recurse."""
    level = [value]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for each in level:
            match each:
                case str():
                    _check_text(each)
                case list():
                    below.extend(each)
                case dict():
                    below.extend(each)
                    below.extend(each.values())
        if not below:
            return
        level = below
    raise ProtocolError(f"the sandbox sent JSON that is nested more than {MAX_DEPTH} deep")


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ProtocolError("the sandbox sent text that is not Unicode") from None
