"""A server that answers over HTTP/2 and leaves at once: all that it said before reaches the client.

Frames are taken some at a time, so the end of the connection may be known before they are.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.support.gateways.http2_peers import open_stream, run, upstream

pytestmark = pytest.mark.threat("T-C8")

FRAMES = 100  # more than are taken in one turn


@pytest.mark.parametrize("frames", [3, FRAMES])
@pytest.mark.parametrize("end", ["eof", "eof, then reset", "reset"])
def test_the_last_frames_before_the_end_are_not_lost(frames: int, end: str) -> None:
    """The few frames are the control: those are taken in the turn in which they come."""

    async def main() -> None:
        async with upstream() as (made, server):
            reader = open_stream(made)
            await server.until(lambda: 1 in server.messages)
            server.answer(1)
            for _ in range(frames - 1):
                server.h2.send_data(1, b"x")
            server.h2.send_data(1, b"y", end_stream=True)
            server.h2.close_connection()
            channel = server.pipe.channel
            channel.data_received(server.h2.data_to_send())
            if end != "reset":
                channel.eof_received()
            if end != "eof":
                channel.connection_lost(ConnectionResetError())
            assert not made.usable
            for _ in range(FRAMES):
                await asyncio.sleep(0)
            assert reader.text.count(b"x") == frames - 1
            assert reader.text.endswith(b"y\r\n0\r\n\r\n")
            assert made.closed

    run(main)


def test_an_answer_that_was_cut_short_is_not_whole() -> None:
    async def main() -> None:
        async with upstream() as (made, server):
            reader = open_stream(made)
            await server.until(lambda: 1 in server.messages)
            server.answer(1)
            for _ in range(FRAMES):
                server.h2.send_data(1, b"x")
            server.pipe.channel.data_received(server.h2.data_to_send())
            server.pipe.channel.eof_received()
            for _ in range(FRAMES):
                await asyncio.sleep(0)
            assert b"0\r\n\r\n" not in reader.text
            assert isinstance(reader.lost[0], ConnectionResetError)
            assert made.closed

    run(main)
