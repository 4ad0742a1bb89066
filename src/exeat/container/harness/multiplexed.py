"""An engine's attach stream: stdout and stderr of a container in one, each piece with a header of eight bytes."""

from __future__ import annotations

import struct
from typing import Final

from exeat.errors import ProtocolError

_HEADER: Final = struct.Struct(">BxxxI")
STDOUT: Final = 1
STDERR: Final = 2


class Demultiplexer:
    """Bytes in, those of its streams out. Nothing is kept but a header and how much of a piece is still to come."""

    def __init__(self) -> None:
        self._header = b""
        self._stream = 0
        self._left = 0

    def feed(self, data: bytes) -> bytes:
        """What there is of stdout. Raises ProtocolError."""
        return b"".join(piece for stream, piece in self.pieces(data) if stream == STDOUT)

    def pieces(self, data: bytes) -> list[tuple[int, bytes]]:
        """Each with the number of its stream. Raises ProtocolError."""
        found = []
        while data:
            if not self._left:
                missing = _HEADER.size - len(self._header)
                self._header, data = self._header + data[:missing], data[missing:]
                if len(self._header) < _HEADER.size:
                    break
                self._stream, self._left = _HEADER.unpack(self._header)
                self._header = b""
                if self._stream not in (STDOUT, STDERR):
                    raise ProtocolError("the engine's stream is not one of stdout and stderr")
                continue
            piece, data = data[: self._left], data[self._left :]
            self._left -= len(piece)
            found.append((self._stream, piece))
        return found
