"""Names become addresses once, in time, and for everybody who asks."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
import threading
from collections.abc import Sequence

import pytest

from exeat.gateway.gates.resolve import ResolveError, Resolver, is_own_address, system_lookup


class Names:
    """A look-up that counts its questions and answers when told to."""

    def __init__(self, *answer: str) -> None:
        self.answer = answer
        self.asked: list[str] = []
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def __call__(self, name: str) -> Sequence[str]:
        self.asked.append(name)
        await self.go_on.wait()
        return self.answer


def test_fifty_at_once_are_one_question() -> None:
    """All get the answer, and the next one within a few seconds gets it from memory."""

    async def main() -> None:
        names = Names("192.0.2.1", "2001:db8::1", "192.0.2.1")
        names.go_on.clear()
        resolver = Resolver(5, names)
        waiting = [asyncio.create_task(resolver.resolve("a.test")) for _ in range(50)]
        await asyncio.sleep(0)
        names.go_on.set()
        answers = set(await asyncio.gather(*waiting))
        assert answers == {(ipaddress.ip_address("192.0.2.1"), ipaddress.ip_address("2001:db8::1"))}
        await resolver.resolve("a.test")
        assert names.asked == ["a.test"]
        resolver.forget_all()
        await resolver.resolve("a.test")
        assert resolver.lookups == 2

    asyncio.run(main())


def test_one_who_gives_up_does_not_take_the_answer_from_the_others() -> None:
    """A client that leaves cancels its own wait only."""

    async def main() -> None:
        names = Names("192.0.2.1")
        names.go_on.clear()
        resolver = Resolver(5, names)
        leaves, stays = (asyncio.create_task(resolver.resolve("a.test")) for _ in range(2))
        await asyncio.sleep(0)
        leaves.cancel()
        names.go_on.set()
        assert len(await stays) == 1

    asyncio.run(main())


def test_silence_is_an_error_in_time() -> None:
    """And it is not remembered: the next question is asked again."""

    async def main() -> None:
        names = Names("192.0.2.1")
        names.go_on.clear()
        resolver = Resolver(0.01, names)
        with pytest.raises(ResolveError) as caught:
            await resolver.resolve("a.test")
        assert caught.value.timed_out
        names.go_on.set()
        assert len(await resolver.resolve("a.test")) == 1

    asyncio.run(main())


@pytest.mark.parametrize("answer", [(), ("not an address",), ("192.0.2.1", "0x7f.1"), ("192.0.2.1\0",)])
def test_an_answer_that_is_none_is_an_error(answer: tuple[str, ...]) -> None:
    """Nothing, or something that is no address, even next to one that is."""

    async def main() -> None:
        with pytest.raises(ResolveError) as caught:
            await Resolver(5, Names(*answer)).resolve("a.test")
        assert not caught.value.timed_out

    asyncio.run(main())


def test_the_memory_is_bounded() -> None:
    """I5: a thousand names more, and the first are forgotten."""

    async def main() -> None:
        names = Names("192.0.2.1")
        resolver = Resolver(5, names)
        for number in range(1_100):
            await resolver.resolve(f"{number}.test")
        assert len(resolver._cached) <= 1_024
        assert resolver._asked == {}

    asyncio.run(main())


def test_the_systems_resolver_is_asked_without_holding_up_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may take its time: the loop goes on meanwhile. Its error is the caller's."""
    go_on = threading.Event()

    def slow(name: str, *_: object, **__: object) -> list[tuple[object, ...]]:
        assert go_on.wait(60), "the loop was held up"
        if name.startswith("nowhere"):
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.7", 0))]

    monkeypatch.setattr("exeat.gateway.gates.resolve.socket.getaddrinfo", slow)

    async def main() -> None:
        asyncio.get_running_loop().call_later(0.01, go_on.set)
        assert await system_lookup("somewhere.test") == ["192.0.2.7"]
        with pytest.raises(socket.gaierror):
            await system_lookup("nowhere.test")

    asyncio.run(main())


def test_own_addresses_are_known() -> None:
    """Loopback is this machine's; an address for documentation is not."""
    assert is_own_address(ipaddress.ip_address("127.0.0.1"))
    assert not is_own_address(ipaddress.ip_address("192.0.2.1"))


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
def test_an_address_that_cannot_be_judged_counts_as_own(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A5: out of descriptors is no reason to let a connection to this machine pass as one to the internet."""

    def fail(*_: object) -> socket.socket:
        raise OSError(code, "out of something")

    monkeypatch.setattr("exeat.gateway.gates.resolve.socket.socket", fail)
    assert is_own_address(ipaddress.ip_address("192.0.2.1"))
