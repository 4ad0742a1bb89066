"""A request that waits for its answer, and what a call has written by then."""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import Callable

from exeat.container.harness.outcome import HarnessLostError, Stream
from exeat.container.harness.protocol import Frame
from exeat.errors import ProtocolError


class Pending:
    """Holds at most `output_bytes` of output: the harness has counted, and is not believed."""

    def __init__(
        self,
        output_bytes: int = 0,
        result_bytes: int = 0,
        on_output: Callable[[Stream, str], None] | None = None,
    ) -> None:
        self.number = 0
        self.result_bytes = result_bytes
        self.is_abandoned = False
        self.answer: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self._room = output_bytes
        self._on_output = on_output
        self._written = {stream: bytearray() for stream in Stream}
        # A character may come in two pieces.
        self._decoders = {stream: codecs.getincrementaldecoder("utf-8")("replace") for stream in Stream}

    @property
    def stdout(self) -> str:
        return self._written[Stream.STDOUT].decode(errors="replace")

    @property
    def stderr(self) -> str:
        return self._written[Stream.STDERR].decode(errors="replace")

    def take_output(self, stream: Stream, data: bytes) -> bool:
        """Keep what was written and tell. False if who was told raised an exception: the call has failed with it."""
        self._room -= len(data)
        if not data or self._room < 0:
            raise ProtocolError("the sandbox sent more output than the limit, or an empty piece")
        if self.is_abandoned:
            return True
        self._written[stream] += data
        return self._tell(stream, data)

    def end_output(self) -> None:
        """Nothing comes after this: half a character is one that cannot be read."""
        for stream in Stream:
            self._tell(stream, b"", is_last=True)

    def _tell(self, stream: Stream, data: bytes, *, is_last: bool = False) -> bool:
        if self._on_output is None:
            return True
        text = self._decoders[stream].decode(data, is_last)
        try:
            if text:
                self._on_output(stream, text)
        except Exception as error:
            if is_last:
                raise
            self._fail(error)
            return False
        return True

    def fail(self, error: HarnessLostError) -> None:
        """The connection is gone."""
        self._fail(HarnessLostError(error.public, detail=error.detail))

    def _fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)
            self.answer.exception()  # raised where someone waits, if anyone does
