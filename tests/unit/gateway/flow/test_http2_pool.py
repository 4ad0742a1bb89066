"""Shared connections to servers: a bounded number of them, whatever hosts are asked for."""

from __future__ import annotations

from ipaddress import IPv4Address
from typing import cast

from exeat.gateway.flow.pool import Http2Pool, Key, Route
from exeat.gateway.http2.back import Http2Upstream

ROUTE: Route = ("192.0.2.1", (IPv4Address("192.0.2.1"),))


class Fake:
    """What the pool sees of a connection."""

    def __init__(self, idle_since: float = 0.0, streams: int = 0) -> None:
        self.idle_since = idle_since
        self.streams = streams
        self.usable = True
        self.closed = False

    def open_stream(self) -> str:
        self.streams += 1
        return "a stream"

    def close(self) -> None:
        self.closed = True


def key(name: str) -> Key:
    return (name, 443, "*.test", True)


def give(pool: Http2Pool, name: str, fake: Fake) -> Fake:
    pool.give(key(name), cast(Http2Upstream, fake), ROUTE)
    return fake


def test_the_one_that_was_idle_for_longest_makes_room() -> None:
    pool = Http2Pool(2)
    newer, older = give(pool, "a.test", Fake(idle_since=5)), give(pool, "b.test", Fake(idle_since=3))
    third = give(pool, "c.test", Fake(idle_since=9))
    assert (newer.closed, older.closed, third.closed) == (False, True, False)
    assert pool.size == 2
    assert pool.take(key("b.test")) is None
    taken = pool.take(key("c.test"))
    assert taken is not None
    assert taken[1] is ROUTE
    assert third.streams == 1


def test_where_all_are_in_use_the_new_one_is_not_shared() -> None:
    """What is under way on it finishes, and then it is closed."""
    pool = Http2Pool(2)
    busy = [give(pool, f"{name}.test", Fake(streams=1)) for name in "ab"]
    third = give(pool, "c.test", Fake(streams=1))
    assert pool.size == 2
    assert pool.take(key("c.test")) is None
    pool.sweep(0, 30)
    assert not third.closed
    third.streams = 0
    pool.sweep(0, 30)
    assert third.closed
    assert not any(each.closed for each in busy)


def test_one_that_replaces_another_needs_no_room() -> None:
    pool = Http2Pool(1)
    before = give(pool, "a.test", Fake(streams=100))
    before.usable = False
    after = give(pool, "a.test", Fake())
    assert pool.take(key("a.test")) is not None
    assert after.streams == 1
    assert not before.closed


def test_a_thousand_hosts() -> None:
    pool = Http2Pool(10)
    made = [give(pool, f"{each}.test", Fake(idle_since=each)) for each in range(1_000)]
    assert pool.size == 10
    assert sum(not each.closed for each in made) == 10
    pool.set_limit(5)
    give(pool, "more.test", Fake(idle_since=1_000))
    assert pool.size == 5
