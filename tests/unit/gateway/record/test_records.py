"""What a record says of itself: one line for each decision, one for the end, each of them counted."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any, cast

import pytest

from exeat.errors import AuditError, ProtocolError
from exeat.gateway.record.counters import Counters
from exeat.gateway.record.records import AccessRecord, Records
from exeat.policy import Decision, Source, parse_rule
from exeat.reasons import Ending, ProxyError, Reason

RULE = parse_rule("good.test", Source("test"))
ALLOW = Decision(RULE, Reason.ALLOWED)


class Lines:
    """A journal that keeps what it is given, or cannot."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.is_full = False

    def append(self, line: str) -> None:
        self.lines.append(json.loads(f"{{{line}}}"))

    async def commit(self, line: str) -> None:
        if self.is_full:
            raise AuditError("no room")
        self.append(line)


class Book:
    def __init__(self) -> None:
        self.journal = Lines()
        self.counters = Counters()
        self.records = Records(cast("Any", self.journal), self.counters, "box", "netns")

    def record(self) -> AccessRecord:
        made = self.records.new(1, 2, "connect", "CONNECT")
        made.names(("good.test", 443))
        return made

    def last(self) -> tuple[object, ...]:
        line = self.journal.lines[-1]
        return tuple(line.get(key) for key in ("event", "verdict", "reason", "rule", "status", "note"))


@pytest.fixture
def book() -> Book:
    return Book()


def test_allowed_then_finished(book: Book) -> None:
    record = book.record()
    assert asyncio.run(record.allowed(ALLOW))
    assert book.last() == ("decision", "allow", Reason.ALLOWED, "good.test", None, "")
    record.answered(200)
    record.finished("", 3, 5)
    assert book.last() == ("end", "allow", Reason.ALLOWED, "good.test", 200, "")
    assert book.counters.allowed == {("good.test", 443): 1}
    assert (book.counters.sent, book.counters.received, book.counters.failed) == (3, 5, {})


def test_each_line_says_what_its_own_record_does(book: Book) -> None:
    """However much of it others have said before: all that differs between two records is in their lines."""
    rules = [Decision(parse_rule(text, Source("test")), Reason.ALLOWED) for text in ("good.test", "a.test private")]
    names = ("protocol", "method", "host", "port", "address", "rule", "reason", "conn", "verdict", "note")
    choices = [("http", "connect"), ("GET", "PUT"), ("a.test", "b.test"), (80, 81), ("192.0.2.1", "192.0.2.2")]
    wanted = []
    for number, (protocol, method, host, port, address, rule, reason) in enumerate(
        itertools.product(*choices, rules, (Reason.ALLOWED, Reason.INTERCEPTED))
    ):
        record = book.records.new(number, 7, cast("str", protocol), cast("str", method))
        record.names((cast("str", host), cast("int", port)))
        record.leads_to(cast("str", address))
        assert asyncio.run(record.allowed(cast("Decision", rule), cast("Reason", reason)))
        text = cast("Decision", rule).rule_text
        wanted.append((protocol, method, host, port, address, text, reason, number, "allow", ""))
    assert [tuple(line[name] for name in names) for line in book.journal.lines] == wanted
    assert len(book.records.identities) == len(wanted) == 128


def test_what_is_kept_of_what_was_said_is_bounded_and_harmless(book: Book) -> None:
    """Hosts are for the sandbox to invent. Notes may quote what it sent, and are in no line but their own."""
    for number in range(1000):
        record = book.records.new(1, number, "http", "GET")
        record.names((f"host{number}.test", 80))
        assert asyncio.run(record.allowed(ALLOW))
    assert 0 < len(book.records.identities) <= 256
    book.records.identities.clear()
    assert asyncio.run(book.record().allowed(ALLOW))
    book.records.identities.clear()
    record = book.record()
    record.uses(("TOKEN",))
    assert asyncio.run(record.allowed(ALLOW))
    record.finished("reset", 1, 2)
    book.record().denied(Decision(RULE, Reason.PRIVATE_ADDRESS), note="a note")
    assert [line["secrets"] for line in book.journal.lines[-3:]] == [["TOKEN"], ["TOKEN"], []]
    assert book.last()[-1] == "a note"
    assert len(book.records.identities) == 1
    assert "note" not in str(book.records.identities).replace('"note":""', "")
    book.records.identities.clear()
    long = book.records.new(1, 1, "http", "GET")
    long.names(("\u00e4" * 300, 80))
    assert asyncio.run(long.allowed(ALLOW))
    assert not book.records.identities


def test_what_cannot_be_written_is_not_allowed(book: Book) -> None:
    book.journal.is_full = True
    assert not asyncio.run(book.record().allowed(ALLOW))
    assert book.counters.blocked == {("good.test", 443, Reason.AUDIT_FAILED): 1}


def test_denied_names_the_rule_and_the_address(book: Book) -> None:
    book.record().denied(Decision(RULE, Reason.PRIVATE_ADDRESS), "10.0.0.1")
    assert book.last() == ("decision", "deny", Reason.PRIVATE_ADDRESS, "good.test", 403, "")
    assert book.journal.lines[-1]["address"] == "10.0.0.1"


def test_denied_inside_leaves_the_end_as_it_was_allowed(book: Book) -> None:
    record = book.record()
    asyncio.run(record.allowed(ALLOW))
    record.answered(200)
    record.denied_inside(Reason.SNI_MISMATCH, note="why")
    assert book.last() == ("decision", "deny", Reason.SNI_MISMATCH, "good.test", 403, "why")
    record.finished(Reason.SNI_MISMATCH, 0, 0)
    assert book.last() == ("end", "allow", Reason.ALLOWED, "good.test", 200, Reason.SNI_MISMATCH)
    assert book.counters.blocked == {("good.test", 443, Reason.SNI_MISMATCH): 1}


def test_other_refusals(book: Book) -> None:
    book.record().malformed(ProtocolError("not HTTP", detail="GE T", status=400))
    assert book.last() == ("decision", "deny", Reason.MALFORMED, "", 400, "not HTTP: GE T")
    book.record().leads_nowhere("why")
    assert book.last() == ("decision", "deny", Reason.UNKNOWN_ADDRESS, "", 403, "why")
    known = dict(book.counters.blocked)
    book.record().lacks_credentials()
    assert book.last() == ("decision", "deny", Reason.CREDENTIALS, "", 407, "")
    assert book.counters.blocked == known  # it has asked for no place yet


def test_failures_are_counted(book: Book) -> None:
    record = book.record()
    asyncio.run(record.allowed(ALLOW))
    record.failed(502, ProxyError.DNS_ERROR)
    assert book.last() == ("end", "allow", Reason.ALLOWED, "good.test", 502, ProxyError.DNS_ERROR)
    assert book.counters.failed == {("good.test", 443, ProxyError.DNS_ERROR): 1}


@pytest.mark.parametrize(("received", "failed"), [(0, 1), (7, 0)])
def test_a_reset_is_a_failure_unless_the_server_has_answered(book: Book, received: int, failed: int) -> None:
    book.record().finished(Ending.UPSTREAM_RESET, 1, received)
    assert sum(book.counters.failed.values()) == failed
