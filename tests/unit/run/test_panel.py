"""The open questions of a run: whoever answers first is heard, and nothing but an answer is one."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest

from exeat.errors import ConfigError, ExeatError
from exeat.gateway.gates.questions import Answer, Question
from exeat.jail.messages import Answered, Asked, Message, Settled, open_channel, receive, send
from exeat.run.asks.panel import Panel

QUESTION = Question(3, "a.test", 443, "a.test", inside=False)


def play(scene: Callable[[Panel, socket.socket], Awaitable[None]], store: Callable[[str], None] | None = None) -> None:
    """A panel with someone at the other end of its channel."""

    async def run() -> None:
        ours, theirs = open_channel()
        theirs.settimeout(10)
        panel = Panel(30.0, store)
        panel.listen(ours, "terminal")
        with theirs:
            await scene(panel, theirs)
        panel.close()

    asyncio.run(run())


async def begin(panel: Panel) -> asyncio.Task[Answer]:
    task = asyncio.get_running_loop().create_task(panel.ask(QUESTION))
    await asyncio.sleep(0)
    return task


def heard(channel: socket.socket) -> Message | None:
    return receive(channel)[0]


def test_a_question_and_its_answer_over_the_channel() -> None:
    async def scene(panel: Panel, there: socket.socket) -> None:
        asked = await begin(panel)
        assert heard(there) == Asked(3, "a.test", 443, "a.test", False, 30.0, can_store=False)
        send(there, Answered(3, allow=True, always=False))
        assert await asked == Answer(True, "terminal")
        assert heard(there) == Settled(3)
        assert panel.questions() == []

    play(scene)


@pytest.mark.parametrize(
    "packet",
    [b"x", b"[]", b"Ai1:4t1:1t1:0", b"As1:3t1:1t1:0", b"Ai1:3", b"(9:" * 9999, b"r", b"Zi1:3", b"Ai1:3i1:1t1:0",
     b"Ai1:3t1:1t1:1"],
)  # fmt: skip
def test_what_is_not_an_answer_leaves_the_question_open(packet: bytes) -> None:
    """Also a yes for good where there is nothing to keep it in."""

    async def scene(panel: Panel, there: socket.socket) -> None:
        asked = await begin(panel)
        there.send(packet)
        send(there, Answered(3, allow=False, always=False))
        assert await asked == Answer(False, "terminal")

    play(scene)


def test_the_first_answer_counts() -> None:
    """Whoever comes later hears that this question is no longer open."""

    async def scene(panel: Panel, there: socket.socket) -> None:
        asked = await begin(panel)
        assert panel.answer(3, allow=False, always=False, by="control") == "a.test is denied until this command ends"
        with pytest.raises(ExeatError, match="no longer open"):
            panel.answer(3, allow=True, always=False, by="terminal")
        assert await asked == Answer(False, "control")

    play(scene)


def test_for_good() -> None:
    """Kept before it is said; what cannot be kept is no answer."""
    kept: list[str] = []

    def store(rule: str) -> None:
        if len(kept) == 2:
            raise ConfigError("no space left")
        kept.append(rule)

    async def scene(panel: Panel, there: socket.socket) -> None:
        for allow, word in ((True, "allowed"), (False, "denied")):
            asked = await begin(panel)
            assert panel.answer(3, allow=allow, always=True, by="control") == f"a.test is {word} always"
            assert await asked == Answer(allow, "control")
        asked = await begin(panel)
        with pytest.raises(ConfigError):
            panel.answer(3, allow=True, always=True, by="control")
        assert not asked.done()
        assert len(panel.questions()) == 1
        panel.answer(3, allow=False, always=False, by="control")
        assert not (await asked).allow

    play(scene, store)
    assert kept == ["a.test", "!a.test"]


def test_a_question_that_nobody_waits_for_is_taken_back() -> None:
    async def scene(panel: Panel, there: socket.socket) -> None:
        asked = await begin(panel)
        assert isinstance(heard(there), Asked)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        assert heard(there) == Settled(3)

    play(scene)


def test_a_listener_that_leaves_or_does_not_listen_harms_nobody() -> None:
    async def scene(panel: Panel, there: socket.socket) -> None:
        there.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        for _ in range(2_000):  # more than its buffer holds: nothing waits for it
            asked = await begin(panel)
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
        there.close()
        await asyncio.sleep(0.01)
        asked = await begin(panel)
        panel.answer(3, allow=True, always=False, by="control")
        assert (await asked).allow

    play(scene)
