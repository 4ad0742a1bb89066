"""One timer for many attempts: each expires at its time, in whatever order they began, and none that is over."""

from __future__ import annotations

import asyncio

from exeat.gateway.deadlines import Deadlines


class Attempt:
    def __init__(self, name: str, said: list[str], when_last: asyncio.Event | None = None) -> None:
        self._name = name
        self._said = said
        self._when_last = when_last

    def expire(self) -> None:
        self._said.append(self._name)
        if self._when_last is not None:
            self._when_last.set()


def test_attempts_expire_in_the_order_of_their_deadlines() -> None:
    """The one with the shorter limit comes later and is due first; one that is over is not told."""
    said: list[str] = []

    async def main() -> None:
        last = asyncio.Event()
        deadlines = Deadlines(asyncio.get_running_loop())
        over = Attempt("over", said)
        deadlines.add(over, 0.02)
        deadlines.add(Attempt("long", said, last), 0.06)
        deadlines.add(Attempt("short", said), 0.01)
        deadlines.remove(over)
        await last.wait()

    asyncio.run(main())
    assert said == ["short", "long"]


def test_one_that_comes_after_a_timer_that_found_nothing_expires_too() -> None:
    said: list[str] = []

    async def main() -> None:
        loop, last = asyncio.get_running_loop(), asyncio.Event()
        deadlines = Deadlines(loop)
        over = Attempt("over", said)
        deadlines.add(over, 0.0)
        deadlines.remove(over)
        await asyncio.sleep(0.01)
        deadlines.add(Attempt("later", said, last), 0.0)
        await last.wait()

    asyncio.run(main())
    assert said == ["later"]


def test_closed_it_tells_no_one() -> None:
    said: list[str] = []

    async def main() -> None:
        deadlines = Deadlines(asyncio.get_running_loop())
        deadlines.add(Attempt("cut", said), 0.0)
        deadlines.close()
        await asyncio.sleep(0.01)

    asyncio.run(main())
    assert said == []
