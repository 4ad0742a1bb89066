"""DNS messages: read as dnspython reads them, or refused; written so that dnspython reads them back."""

from __future__ import annotations

import struct
from ipaddress import IPv4Address, IPv6Address, ip_address

import dns.edns
import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.reversename
import pytest
from dns.rdataclass import RdataClass
from dns.rdatatype import RdataType
from hypothesis import example, given, settings
from hypothesis import strategies as st

from exeat.wire.dns import (
    MAX_QUERY_BYTES,
    Answer,
    DnsError,
    QType,
    Query,
    Rcode,
    encode_answer,
    encode_error,
    parse_query,
    parse_reverse,
    type_name,
)
from tests.support.examples import examples

ROOT_OPT = b"\0" + struct.pack("!HHIH", 41, 1232, 0, 0)


def message(
    name: bytes = b"\x04good\x04test\0",
    *,
    flags: int = 0x0100,
    counts: tuple[int, int, int, int] = (1, 0, 0, 0),
    qtype: int = 1,
    qclass: int = 1,
    rest: bytes = b"",
) -> bytes:
    return struct.pack("!6H", 0x1234, flags, *counts) + name + struct.pack("!2H", qtype, qclass) + rest


def with_opt(opt: bytes, count: int = 1) -> bytes:
    return message(counts=(1, 0, 0, count), rest=opt)


def refusal(data: bytes) -> DnsError:
    with pytest.raises(DnsError) as caught:
        parse_query(data)
    return caught.value


def test_a_query_is_taken_apart() -> None:
    """Lower case for the policy, and the question as it came for the answer."""
    data = message(b"\x04GoOd\x04teST\0", qtype=28)
    assert parse_query(data) == Query(
        id=0x1234,
        rd=True,
        name="good.test",
        plain=True,
        qtype=28,
        qclass=1,
        question=data[12:],
        has_edns=False,
        udp_size=512,
    )
    assert not parse_query(message(flags=0)).rd


@pytest.mark.parametrize(
    ("wire", "text"),
    [
        (b"\x03a.b\x04test\0", "a\\046b.test"),  # a dot inside a label is not two labels
        (b"\x04a\\.b\x04test\0", "a\\092\\046b.test"),
        (b"\x05a\0b.c\x04test\0", "a\\000b\\046c.test"),
        (b"\x02\xc3\xa9\x04test\0", "\\195\\169.test"),
        (b"\x01 \x04test\0", "\\032.test"),
        (b"\x02a\n\x04test\0", "a\\010.test"),
        (b"\x01*\x04test\0", "\\042.test"),
    ],
)
def test_bytes_that_no_host_name_has_are_shown(wire: bytes, text: str) -> None:
    """They are escaped, and the query says that the name is not plain."""
    query = parse_query(message(wire))
    assert (query.name, query.plain) == (text, False)


def test_the_root_and_odd_but_plain_names() -> None:
    """The root is a dot, and underscores are plain."""
    assert parse_query(message(b"\0")).name == "."
    query = parse_query(message(b"\x05_srv1\x02a-\0"))
    assert (query.name, query.plain) == ("_srv1.a-", True)


LONGEST = (b"\x3f" + b"a" * 63) * 3 + b"\x3d" + b"b" * 61 + b"\0"


def test_the_longest_name_is_read_and_one_byte_more_is_not() -> None:
    """255 bytes with all lengths and the root (RFC 1035 section 2.3.4)."""
    assert len(LONGEST) == 255
    assert len(parse_query(message(LONGEST)).name) == 253
    assert refusal(message((b"\x3f" + b"a" * 63) * 3 + b"\x3e" + b"b" * 62 + b"\0")).rcode is Rcode.FORMERR
    assert refusal(message(b"\x01a" * 2_000 + b"\0")).rcode is Rcode.FORMERR


MALFORMED = {
    "pointer to itself": message(b"\xc0\x0c"),
    "pointer after a label": message(b"\x04good\xc0\x0c"),
    "pointer forward": message(b"\xc0\x20"),
    "label of 64 bytes": message(b"\x40" + b"a" * 64 + b"\0"),
    "label of type 10": message(b"\x80" + b"a" * 128 + b"\0"),
    "no question": message(counts=(0, 0, 0, 0)),
    "no question at all": struct.pack("!6H", 1, 0, 0, 0, 0, 0),
    "two questions": message(counts=(2, 0, 0, 0), rest=message()[12:]),
    "65535 questions": message(counts=(65535, 0, 0, 0)),
    "65535 additional": message(counts=(1, 0, 0, 65535), rest=ROOT_OPT),
    "an answer": message(counts=(1, 1, 0, 0)),
    "an authority": message(counts=(1, 0, 1, 0)),
    "name without end": message()[:18],
    "name cut in a label": message()[:15],
    "no type": message()[:-4],
    "half a class": message()[:-1],
    "trailing byte": message() + b"\0",
    "trailing message": message() * 2,
    "trailing after EDNS": with_opt(ROOT_OPT + b"\0"),
    "EDNS that was not announced": message(rest=ROOT_OPT),
    "EDNS that is missing": message(counts=(1, 0, 0, 1)),
    "two EDNS": with_opt(ROOT_OPT * 2, 2),
    "two EDNS, one announced": with_opt(ROOT_OPT * 2),
    "EDNS with a name": with_opt(b"\x01a" + ROOT_OPT),
    "EDNS without its root": with_opt(b"\x01" + ROOT_OPT[1:]),
    "EDNS with a pointer": with_opt(b"\xc0\x0c" + ROOT_OPT[1:]),
    "EDNS cut off": with_opt(ROOT_OPT[:-1]),
    "EDNS longer than the message": with_opt(ROOT_OPT[:-2] + b"\xff\xff"),
    "EDNS option head cut off": with_opt(ROOT_OPT[:-2] + b"\0\x03\0\x0a\0"),
    "EDNS option cut off": with_opt(ROOT_OPT[:-2] + b"\0\x05\0\x0a\0\x02x"),
    "another additional record": with_opt(b"\0" + struct.pack("!HHIH", 1, 1, 0, 4) + b"\1\2\3\4"),
    "too long": with_opt(ROOT_OPT[:-2] + struct.pack("!HHH", 5_004, 12, 5_000) + bytes(5_000)),
}


@pytest.mark.parametrize("what", MALFORMED)
def test_malformed_is_formerr(what: str) -> None:
    """D4. The answer is a header with the same id and nothing else."""
    error = refusal(MALFORMED[what])
    assert error.rcode is Rcode.FORMERR
    reply = encode_error(error)
    assert reply is not None
    assert reply[:2] == MALFORMED[what][:2]
    assert len(reply) == 12
    assert dns.message.from_wire(reply).rcode() == dns.rcode.FORMERR


def test_every_cut_of_a_query_is_refused() -> None:
    """Silence for less than a header, FORMERR for the rest."""
    whole = with_opt(ROOT_OPT[:-2] + b"\0\x06\0\x0a\0\x02xy")
    assert parse_query(whole).has_edns
    for end in range(len(whole)):
        assert refusal(whole[:end]).rcode is (None if end < 12 else Rcode.FORMERR)


@pytest.mark.parametrize("data", [b"", b"\0" * 11, message(flags=0x8100), message(flags=0x8180) + b"junk"])
def test_what_is_no_query_gets_no_answer(data: bytes) -> None:
    """Answering a response, or a stray byte, is how two servers keep each other busy for ever."""
    error = refusal(data)
    assert error.rcode is None
    assert encode_error(error) is None


@pytest.mark.parametrize("opcode", [1, 2, 4, 5, 15])
def test_other_opcodes_are_not_implemented(opcode: int) -> None:
    """NOTIFY, UPDATE and the like. The opcode comes back, as clients expect."""
    reply = encode_error(refusal(message(flags=opcode << 11 | 0x0100)))
    assert reply is not None
    parsed = dns.message.from_wire(reply)
    assert (parsed.rcode(), parsed.opcode(), parsed.id) == (dns.rcode.NOTIMP, opcode, 0x1234)


def test_another_edns_version_is_badvers() -> None:
    """RFC 6891 section 6.1.3: said in an EDNS record of version 0."""
    error = refusal(with_opt(b"\0" + struct.pack("!HHIH", 41, 1232, 1 << 16, 0)))
    reply = encode_error(error)
    assert reply is not None
    parsed = dns.message.from_wire(reply)
    assert (parsed.rcode(), parsed.edns) == (dns.rcode.BADVERS, 0)


@pytest.mark.parametrize(
    ("announced", "used"), [(0, 512), (511, 512), (512, 512), (1232, 1232), (4096, 4096), (65535, 4096)]
)
def test_the_announced_size_is_kept_in_bounds(announced: int, used: int) -> None:
    """RFC 6891 section 6.2.3 below; a bound of our own above."""
    assert parse_query(with_opt(b"\0" + struct.pack("!HHIH", 41, announced, 0, 0))).udp_size == used


labels = st.one_of(
    st.from_regex(r"[A-Za-z0-9_-]{1,63}", fullmatch=True).map(str.encode), st.binary(min_size=1, max_size=63)
)
names = st.lists(labels, max_size=6).filter(lambda each: sum(map(len, each)) + len(each) < 255)


@settings(max_examples=examples(400))
@given(
    labels=names,
    qtype=st.integers(1, 65535).filter(lambda number: number != 41),
    qclass=st.sampled_from([1, 3, 4, 254, 255]),
    rd=st.booleans(),
    edns=st.one_of(st.none(), st.integers(0, 65535)),
    options=st.lists(st.tuples(st.integers(65001, 65534), st.binary(max_size=40)), max_size=3),
)
def test_dnspython_queries_are_read_as_they_were_meant(
    labels: list[bytes], qtype: int, qclass: int, rd: bool, edns: int | None, options: list[tuple[int, bytes]]
) -> None:
    """Every field agrees, and so does our echo of the question when dnspython reads the answer."""
    sent = dns.message.Message()
    sent.flags = dns.flags.RD if rd else 0
    name = dns.name.Name([*labels, b""])
    sent.find_rrset(sent.question, name, RdataClass.make(qclass), RdataType.make(qtype), create=True, force_unique=True)
    if edns is not None:
        sent.use_edns(
            0,
            payload=edns,
            options=[dns.edns.GenericOption(dns.edns.OptionType.make(code), value) for code, value in options],
        )
    query = parse_query(sent.to_wire())
    assert (query.id, query.rd, query.qtype, query.qclass) == (sent.id, rd, qtype, qclass)
    assert query.has_edns is (edns is not None)
    assert query.udp_size == (512 if edns is None else max(512, min(edns, 4096)))
    letters = b"abcdefghijklmnopqrstuvwxyz0123456789-_"
    assert query.plain is all(byte in letters for label in labels for byte in label.lower())
    if query.plain:
        assert query.name == (b".".join(labels).lower().decode() or ".")
    else:
        assert "\\" in query.name
    reply = dns.message.from_wire(encode_answer(query, Rcode.REFUSED))
    assert reply.question[0].name.labels == name.labels  # the case is kept
    assert reply.rcode() == dns.rcode.REFUSED
    assert bool(reply.flags & dns.flags.RD) is rd
    assert reply.flags & dns.flags.RA
    assert reply.edns == (-1 if edns is None else 0)


@settings(max_examples=examples(600))
@given(st.one_of(st.binary(max_size=80), st.binary(max_size=60).map(lambda data: message()[:12] + data)))
@example(b"\0" * 12)
def test_any_bytes_are_a_query_or_a_dns_error(data: bytes) -> None:
    """And whatever we say to them is a message that dnspython can read."""
    try:
        query = parse_query(data)
    except DnsError as error:
        reply = encode_error(error)
    else:
        reply = encode_answer(query, Rcode.NOERROR)
    if reply is not None:
        parsed = dns.message.from_wire(reply, question_only=True)
        assert parsed.id == int.from_bytes(data[:2])
        assert parsed.flags & dns.flags.QR


@settings(max_examples=examples(600))
@given(
    st.sampled_from([message(), with_opt(ROOT_OPT), with_opt(ROOT_OPT[:-2] + b"\0\x06\0\x0a\0\x02xy")]),
    st.lists(st.tuples(st.integers(2, 60), st.integers(0, 255)), min_size=1, max_size=4),
)
def test_what_we_read_dnspython_reads_too(original: bytes, edits: list[tuple[int, int]]) -> None:
    """A changed byte may give another query; it is never one that only we can see."""
    data = bytearray(original)
    for at, byte in edits:
        if at < len(data):
            data[at] = byte
    try:
        query = parse_query(bytes(data))
    except DnsError:
        return
    # dnspython knows the shape of some EDNS options, and has opinions on questions of type OPT: not on names.
    read = dns.message.from_wire(bytes(data), question_only=True, ignore_trailing=True)
    question = read.question[0]
    assert (question.rdtype, question.rdclass) == (query.qtype, query.qclass)
    if query.plain:
        assert question.name.to_text(omit_final_dot=True).lower() == query.name


def test_records_come_back_as_they_were_given() -> None:
    """A, AAAA and PTR, each about the name that was asked for."""
    asked = dns.message.make_query("1.0.18.198.in-addr.arpa", "PTR")
    query = parse_query(asked.to_wire())
    values: list[IPv4Address | IPv6Address | str] = [IPv4Address("198.18.0.1"), IPv6Address("fd65::1"), "a-b.good.test"]
    reply = dns.message.from_wire(encode_answer(query, Rcode.NOERROR, [Answer(value, 60) for value in values]))
    assert reply.rcode() == dns.rcode.NOERROR
    assert [str(each) for each in reply.answer] == [
        "1.0.18.198.in-addr.arpa. 60 IN A 198.18.0.1",
        "1.0.18.198.in-addr.arpa. 60 IN AAAA fd65::1",
        "1.0.18.198.in-addr.arpa. 60 IN PTR a-b.good.test.",
    ]
    assert asked.is_response(reply)


def test_what_does_not_fit_is_cut_over_udp_only() -> None:
    """TC without any record, so that no one takes half an answer for a whole one. EDNS and TCP have room."""
    name = LONGEST[:-1].decode().translate({0x3F: ".", 0x3D: "."})[1:]
    records = [Answer(name, 60)]
    plain = parse_query(message(LONGEST, qtype=12))
    cut = dns.message.from_wire(encode_answer(plain, Rcode.NOERROR, records))
    assert cut.flags & dns.flags.TC
    assert cut.answer == []
    for query, tcp in ((plain, True), (parse_query(message(LONGEST, counts=(1, 0, 0, 1), rest=ROOT_OPT)), False)):
        whole = dns.message.from_wire(encode_answer(query, Rcode.NOERROR, records, tcp=tcp))
        assert not whole.flags & dns.flags.TC
        assert whole.answer[0].to_text().endswith(f"PTR {name}.")


def test_an_answer_that_just_fits_is_not_cut() -> None:
    """The limit is the size of the whole message, the EDNS record included."""
    query = parse_query(message())
    records = [Answer(IPv4Address(number), 60) for number in range(30)]
    assert len(encode_answer(query, Rcode.NOERROR, records)) == 12 + 15 + 30 * 16 == 507
    for opt, records_that_fit in ((b"", 30), (b"\0" + struct.pack("!HHIH", 41, 512, 0, 0), 29)):
        query = parse_query(with_opt(opt)) if opt else query
        for count in (records_that_fit, records_that_fit + 1):
            answer = [Answer(IPv4Address(number), 60) for number in range(count)]
            reply = encode_answer(query, Rcode.NOERROR, answer)
            assert bool(reply[2] & 0x02) is (count > records_that_fit), count


@pytest.mark.parametrize("name", ["", ".", "a..b", "a" * 64, ".".join(["a" * 63] * 4)])
def test_only_names_are_written_as_names(name: str) -> None:
    """A defect must not become a malformed message."""
    with pytest.raises(ValueError, match="not a canonical name"):
        encode_answer(parse_query(message()), Rcode.NOERROR, [Answer(name, 60)])


@given(st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)))
def test_reverse_names_are_read_as_dnspython_writes_them(ip: IPv4Address | IPv6Address) -> None:
    """Both trees, every address."""
    name = dns.reversename.from_address(str(ip)).to_text(omit_final_dot=True)
    if isinstance(ip, IPv6Address) and ip.ipv4_mapped is not None:
        assert parse_reverse(name) == ip_address(ip.ipv4_mapped)  # dnspython writes these as IPv4
    else:
        assert parse_reverse(name) == ip


@pytest.mark.parametrize(
    "name",
    [
        "in-addr.arpa",
        "0.18.198.in-addr.arpa",
        "1.1.0.18.198.in-addr.arpa",
        "01.0.18.198.in-addr.arpa",
        "256.0.18.198.in-addr.arpa",
        "x.0.18.198.in-addr.arpa",
        "1.0.18.198.in-addr.arpa.evil.test",
        "a.1.0.18.198.in-addr.arpa",
        "1.0.18.198.in-addrxarpa",
        "1.0.ip6.arpa",
        "1." * 33 + "ip6.arpa",
        "g" + ".1" * 31 + ".ip6.arpa",
        "10" + ".1" * 31 + ".ip6.arpa",
        "good.test",
    ],
)
def test_other_names_are_no_reverse_names(name: str) -> None:
    """Exactly four decimal labels or 32 hexadecimal ones."""
    assert parse_reverse(name) is None


def test_types_have_the_names_that_dnspython_has() -> None:
    """And numbers without a name are written by RFC 3597."""
    for qtype in QType:
        assert type_name(qtype) == RdataType.to_text(RdataType(qtype))
    assert type_name(65280) == "TYPE65280"


def test_the_longest_message_is_read() -> None:
    """The bound on length is the one that is stated."""
    room = MAX_QUERY_BYTES - len(with_opt(ROOT_OPT)) - 4
    opt = ROOT_OPT[:-2] + struct.pack("!HHH", room + 4, 12, room) + bytes(room)
    assert len(with_opt(opt)) == MAX_QUERY_BYTES
    assert parse_query(with_opt(opt)).name == "good.test"
    longer = ROOT_OPT[:-2] + struct.pack("!HHH", room + 5, 12, room + 1) + bytes(room + 1)
    assert refusal(with_opt(longer)).public == "the message is too long"
