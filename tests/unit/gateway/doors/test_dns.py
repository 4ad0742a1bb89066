"""DNS in the jail: addresses for what could be allowed, a refusal and a record for the rest, and nothing leaves."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path

import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdataclass
import dns.reversename
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from exeat.gateway.doors.synthetic import GRACE_S
from exeat.gateway.record import records
from exeat.sources import make_policy
from tests.support.examples import examples
from tests.unit.gateway.doors.dns_bench import LOOPS, opened, query_for, run, until


@pytest.fixture
def audit(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


# Names


def test_allowed_names_have_addresses_that_stand_for_them(audit: Path) -> None:
    """The same ones each time and for each spelling, and no record: the connection will have one."""

    async def main() -> None:
        async with opened(audit, ["good.test:22", "*.wild.test"]) as bench:
            (v4,), (v6,) = bench.values("good.test"), bench.values("GOOD.test.", "AAAA")
            assert (v4, v6) == ("198.18.0.1", "fd65:7865:6174::1")
            assert bench.values("good.test") == [v4]
            assert bench.values("a.wild.test") == ["198.18.0.2"]
            assert bench.values("_x.wild.test") == ["198.18.0.3"]
            assert await bench.lines() == []

    run(main)


@pytest.mark.parametrize("qtype", ["HTTPS", "SVCB", "TXT", "MX", "SRV", "ANY", "NS", "CNAME", "SOA", "TYPE65280"])
def test_allowed_names_have_nothing_else(audit: Path, qtype: str) -> None:
    """NODATA: the name is there. An HTTPS record could carry addresses or keys past us. No address is used up."""

    async def main() -> None:
        async with opened(audit) as bench:
            assert bench.values("good.test", qtype) == []
            assert bench.values("localhost", qtype) == []
            assert len(bench.names) == 0
            assert await bench.lines() == []

    run(main)


@pytest.mark.threat("T-D1")
@pytest.mark.parametrize(
    ("name", "qtype", "host"),
    [
        ("evil.test", "A", "evil.test"),
        ("evil.test", "TXT", "evil.test"),
        ("c2VjcmV0.Evil.test", "AAAA", "c2vjcmv0.evil.test"),
        ("sub.good.test", "A", "sub.good.test"),
        ("xgood.test", "A", "xgood.test"),
        ("good.test.evil.test", "A", "good.test.evil.test"),
        ("com", "A", "com"),
        (".", "NS", "."),
        ("127.0.0.1", "A", "127.0.0.1"),
        ("10.0.0.1", "A", "10.0.0.1"),
        ("0x7f.1", "A", "0x7f.1"),
        ("-a.good.test", "A", "-a.good.test"),
        ("xn--a.good.test", "A", "xn--a.good.test"),
        ("notlocalhost", "A", "notlocalhost"),
        ("localhost.evil.test", "A", "localhost.evil.test"),
        ("8.8.8.8.in-addr.arpa", "PTR", "8.8.8.8.in-addr.arpa"),
        ("secret.in-addr.arpa", "PTR", "secret.in-addr.arpa"),
        ("1.0.18.198.in-addr.arpa", "PTR", "1.0.18.198.in-addr.arpa"),  # ours, but it stands for nothing yet
        ("2.0.0.127.in-addr.arpa", "PTR", "2.0.0.127.in-addr.arpa"),
        ("good.test", "PTR", "good.test"),
        ("sub.localhost", "PTR", "sub.localhost"),
    ],
)
def test_everything_else_is_refused_and_put_on_record(audit: Path, name: str, qtype: str, host: str) -> None:
    """The name is in the log, with the type it was asked for, and no address is given out."""

    async def main() -> None:
        async with opened(audit, ["good.test", "10.0.0.1"]) as bench:
            assert bench.is_refused(name, qtype)
            (line,) = await bench.lines()
            wanted = {
                "protocol": "dns",
                "method": qtype,
                "host": host,
                "port": 53,
                "verdict": "deny",
                "reason": "not-listed",
                "status": 403,
                "sandbox": "box",
                "jail": "netns",
            }
            assert line.items() >= wanted.items()
            assert bench.state.counters.decisions == {("deny", "not-listed"): 1}
            assert bench.state.counters.hosts[host].denied == 1
            assert len(bench.names) == 0

    run(main)


@pytest.mark.parametrize(
    "label", [b"a.good", b"good\0", b"go od", b"\xc3\xa9", b"*", b"good\n", b"a\\.good", b"a/b", b"a:b"]
)
def test_names_with_odd_bytes_are_never_allowed(audit: Path, label: bytes) -> None:
    """Not even where every name is: what reads as `a.good.test` here may be something else to the next reader."""

    async def main() -> None:
        async with opened(audit, ["* force"]) as bench:
            query = dns.message.make_query(dns.name.Name([label, b"test", b""]), "A")
            data = bench.door.answer(query.to_wire(), tcp=False)
            assert data is not None
            assert dns.message.from_wire(data).rcode() == dns.rcode.NXDOMAIN
            assert [line["note"] for line in await bench.lines()] == ["not a host name"]
            assert bench.values("plain.test") != []

    run(main)


@pytest.mark.parametrize("name", ["127.0.0.1", "169.254.169.254", "2130706433", "0x7f.1", "good.test.1"])
def test_what_reads_as_an_address_is_never_a_name(audit: Path, name: str) -> None:
    """A5: not even where every name is allowed, or a name would stand for an address that a rule must list."""

    async def main() -> None:
        async with opened(audit, ["* force"]) as bench:
            assert bench.is_refused(name)
            assert len(await bench.lines()) == 1
            assert len(bench.names) == 0

    run(main)


def test_a_denied_name_says_by_which_rule(audit: Path) -> None:
    """As the other doors do."""

    async def main() -> None:
        async with opened(audit, ["* force"], ["evil.test:*"]) as bench:
            assert bench.is_refused("evil.test")
            (line,) = await bench.lines()
            assert (line["reason"], line["rule"]) == ("denied-by-rule", "!evil.test:*")

    run(main)


def test_a_refused_name_does_not_exist_for_no_longer_than_now(audit: Path) -> None:
    """Programs believe "no such name" and ask no further. It may be allowed at any moment, so no one is to keep it."""

    async def main() -> None:
        async with opened(audit) as bench:
            for edns in (None, 0):
                reply = bench.ask("evil.test", use_edns=edns)
                assert (reply.rcode(), reply.answer) == (dns.rcode.NXDOMAIN, [])
                (soa,) = reply.authority
                assert (soa.name, soa.ttl, soa[0].minimum) == (dns.name.root, 0, 0)
            assert bench.ask("good.test").authority == []

    run(main)


def test_other_classes_are_refused(audit: Path) -> None:
    """`version.bind CH TXT` and the like, even for names that are allowed."""

    async def main() -> None:
        async with opened(audit) as bench:
            reply = bench.ask("good.test", rdclass=dns.rdataclass.CH)
            assert reply.rcode() == dns.rcode.REFUSED
            assert [line["note"] for line in await bench.lines()] == ["class 3"]

    run(main)


def test_localhost_is_the_jails_own(audit: Path) -> None:
    """RFC 6761, without a record and whatever the policy says."""

    async def main() -> None:
        async with opened(audit, [], ["*:*"]) as bench:
            for name in ("localhost", "LocalHost.", "app.localhost"):
                assert bench.values(name) == ["127.0.0.1"]
                assert bench.values(name, "AAAA") == ["::1"]
            assert bench.values("1.0.0.127.in-addr.arpa", "PTR") == ["localhost."]
            assert bench.values(dns.reversename.from_address("::1").to_text(), "PTR") == ["localhost."]
            assert await bench.lines() == []

    run(main)


def test_our_addresses_have_their_names(audit: Path) -> None:
    """Programs that show the peer's name get the one they asked for."""

    async def main() -> None:
        async with opened(audit) as bench:
            for qtype in ("A", "AAAA"):
                (ip,) = bench.values("good.test", qtype)
                assert bench.values(dns.reversename.from_address(ip).to_text(), "PTR") == ["good.test."]

    run(main)


def test_the_policy_of_the_moment_counts(audit: Path) -> None:
    """One that is swapped in holds for the next query."""

    async def main() -> None:
        async with opened(audit) as bench:
            assert bench.values("good.test")
            bench.state.set_policy(make_policy(["other.test"]))
            assert bench.is_refused("good.test")
            assert bench.values("other.test")

    run(main)


def test_a_pool_that_is_used_up_is_a_failure(audit: Path) -> None:
    """SERVFAIL and a record; names that have an address keep it, and time makes room."""

    async def main() -> None:
        async with opened(audit, ["*.good.test"], size=2) as bench:
            first = bench.values("a.good.test")
            bench.values("b.good.test")
            reply = bench.ask("c.good.test")
            assert (reply.rcode(), reply.answer) == (dns.rcode.SERVFAIL, [])
            assert bench.values("a.good.test") == first
            assert [(line["host"], line["reason"]) for line in await bench.lines()] == [
                ("c.good.test", "no-address-left")
            ]
            bench.now += GRACE_S
            assert bench.values("c.good.test")

    run(main)


# Messages


@pytest.mark.threat("T-D4")
def test_malformed_is_answered_and_put_on_record_once(audit: Path) -> None:
    """FORMERR; what is no query at all gets silence."""

    async def main() -> None:
        async with opened(audit) as bench:
            header = struct.pack("!6H", 7, 0, 65535, 0, 0, 0)
            for _ in range(3):
                data = bench.door.answer(header, tcp=False)
                assert data is not None
                assert dns.message.from_wire(data).rcode() == dns.rcode.FORMERR
            assert bench.door.answer(b"short", tcp=False) is None
            assert bench.door.answer(dns.message.make_response(query_for("good.test")).to_wire(), tcp=True) is None
            assert [(line["reason"], line["host"]) for line in await bench.lines()] == [("malformed", "")]
            assert bench.state.counters.decisions == {("deny", "malformed"): 3}

    run(main)


def test_the_longest_name_fits_into_a_datagram(audit: Path) -> None:
    """Without EDNS too: no one needs TCP to learn a name."""
    name = ".".join(["a" * 60] * 3 + ["b" * 60, "good.test"])
    assert len(name) == 253
    reverse = dns.reversename.from_address("fd65:7865:6174::1").to_text()

    async def main() -> None:
        async with opened(audit, [".good.test"]) as bench:
            bench.values(name)
            for tcp in (False, True):
                reply = bench.ask(reverse, "PTR", tcp=tcp)
                assert not reply.flags & dns.flags.TC, "it fits"
                assert str(reply.answer[0][0]) == name + "."

    run(main)


@settings(max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(messages=st.lists(st.binary(max_size=64).map(lambda data: b"\0\1\1\0\0\1\0\0\0\0\0\0" + data), max_size=8))
def test_no_bytes_raise_or_give_an_address_away(audit: Path, messages: list[bytes]) -> None:
    """With nothing allowed there is no answer section, whatever comes; localhost aside."""

    async def main() -> None:
        async with opened(audit, []) as bench:
            for data in messages:
                reply = bench.door.answer(data, tcp=False)
                assert reply is not None
                assert reply[6:8] == b"\0\0" or b"localhost" in data.lower()

    run(main)


# Repeats


def test_repeats_are_counted_and_not_written_one_by_one(audit: Path) -> None:
    """One line for the name at once, one with the number of repeats on closing; the counters have them all."""

    async def main() -> None:
        async with opened(audit) as bench:
            for qtype in ("A", "AAAA", "A", "AAAA"):
                assert bench.is_refused("evil.test", qtype)
            assert bench.is_refused("once.test")
            first = await bench.lines()
            assert [(line["host"], line["method"], line["note"]) for line in first] == [
                ("evil.test", "A", ""),
                ("once.test", "A", ""),
            ]
            assert bench.state.counters.hosts["evil.test"].denied == 4
            await bench.door.close()
            assert [(line["host"], line["note"]) for line in (await bench.lines())[2:]] == [
                ("evil.test", "3 more times within 5 s")
            ]

    run(main)


@pytest.mark.parametrize("loop", LOOPS)
def test_repeats_are_written_when_their_time_is_over(audit: Path, monkeypatch: pytest.MonkeyPatch, loop: str) -> None:
    """Without anybody asking again, and then the name is new."""
    monkeypatch.setattr(records, "_REPEAT_S", 0.5)

    async def main() -> None:
        async with opened(audit) as bench:
            assert bench.is_refused("evil.test")
            assert bench.is_refused("evil.test")
            await until(lambda: audit.read_text().count("evil.test") == 2)
            assert bench.is_refused("evil.test")
            notes = [line["note"] for line in await bench.lines()]
            assert len(notes) == 3
            assert [note.startswith("1 more") for note in notes] == [False, True, False]

    run(main, loop)


def test_each_name_has_a_time_of_its_own(audit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that began later is written later, and is not forgotten when the first is done."""
    monkeypatch.setattr(records, "_REPEAT_S", 0.2)

    async def main() -> None:
        async with opened(audit) as bench:
            for name in ("first.test", "second.test"):
                assert bench.is_refused(name)
                assert bench.is_refused(name)
                await asyncio.sleep(0.05)
            await until(lambda: audit.read_text().count("second.test") == 2)
            assert [line["host"] for line in (await bench.lines())[2:]] == ["first.test", "second.test"]

    run(main)


def test_the_memory_of_refusals_is_bounded(audit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest makes room, and its repeats are written then."""
    monkeypatch.setattr(records, "_MAX_RECENT", 8)

    async def main() -> None:
        async with opened(audit) as bench:
            assert bench.is_refused("first.test")
            assert bench.is_refused("first.test")
            for number in range(100):
                assert bench.is_refused(f"{number}.test")
                assert len(bench.door._denials._recent) <= 8
            lines = await bench.lines()
            assert len(lines) == 102
            assert [line["note"] for line in lines if line["host"] == "first.test"] == [
                "",
                "1 more times within 5 s",
            ]

    run(main)
