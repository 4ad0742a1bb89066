"""Bytes that the kernel moves: a source that pauses is waited for, not asked again and again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from exeat.gateway.flow.splice import Splice
from tests.support.gateways.transports import run, two_channels, until


@pytest.mark.threat("T-I1")
@pytest.mark.parametrize("size", [1_000, 100_000, 400_000])
def test_a_source_that_pauses_costs_nothing(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a round of middle size it is left alone for a moment, once."""
    rounds = 0
    move = Splice._move

    def counted(splice: Splice) -> None:
        nonlocal rounds
        rounds += 1
        move(splice)

    monkeypatch.setattr(Splice, "_move", counted)

    async def main() -> None:
        nonlocal rounds
        loop = asyncio.get_running_loop()
        source, sender, target, reader = await two_channels()
        ended: list[Any] = []
        splice = Splice(source, target, ended.append, lambda: ended.append("refused"))
        source.hand_over()
        for _ in range(3):
            sending = loop.create_task(loop.sock_sendall(sender, bytes(size)))
            left = size
            while left:
                left -= len(await loop.sock_recv(reader, left))
            await sending
            await asyncio.sleep(0.02)
            before = rounds
            await asyncio.sleep(0.05)
            assert rounds == before
        sender.close()
        await until(lambda: ended)
        assert ended == [None]
        splice.close()
        for each in (source, target):
            each.abort()
        await until(lambda: source.closed and target.closed)
        reader.close()

    run(main)
