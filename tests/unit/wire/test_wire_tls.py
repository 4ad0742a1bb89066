"""ClientHellos: real ones are read however they arrive, and nothing else is."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import SupportsIndex

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from exeat.errors import ProtocolError
from exeat.wire.tls import MAX_HELLO_BYTES, MAX_HELLO_RECORDS, ClientHello, parse_client_hello
from tests.support.clients.hello import records, vector
from tests.support.examples import examples
from tests.unit.wire.mutation import Mutation, mutate, mutations

Extension = tuple[int, bytes]


def real_hello(
    name: str | None, alpn: Sequence[str] = (), maximum: ssl.TLSVersion = ssl.TLSVersion.MAXIMUM_SUPPORTED
) -> bytes:
    """What OpenSSL sends first."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.maximum_version = maximum
    if alpn:
        context.set_alpn_protocols(list(alpn))
    outgoing = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def server_name(*names: bytes, kind: int = 0) -> Extension:
    return 0, vector(2, b"".join(bytes((kind,)) + vector(2, name) for name in names))


def hello_message(extensions: Sequence[Extension] | None, tail: bytes = b"") -> bytes:
    """A handshake message; `tail` is inside its length, behind the extensions."""
    body = b"\x03\x03" + bytes(32) + vector(1, bytes(32)) + vector(2, b"\x13\x01") + vector(1, b"\0")
    if extensions is not None:
        body += vector(2, b"".join(kind.to_bytes(2) + vector(2, content) for kind, content in extensions))
    return b"\x01" + vector(3, body + tail)


def hello(*extensions: Extension) -> bytes:
    return records(hello_message(extensions))


def refused(data: bytes) -> bool:
    try:
        parse_client_hello(data)
    except ProtocolError:
        return True
    return False


def assert_same_however_it_arrives(data: bytes) -> ClientHello | None:
    """Feed ever longer prefixes. The first verdict, hello or refusal, must be the verdict on the whole."""
    whole_refused = refused(data)
    whole = None if whole_refused else parse_client_hello(data)
    for end in range(len(data)):
        if refused(data[:end]):
            assert whole_refused, end
            return None
        early = parse_client_hello(data[:end])
        if early is not None:
            assert early == whole, end
            return whole
    return whole


REAL = {
    "name": (real_hello("good.test"), "good.test"),
    "long name": (real_hello(("a" * 60 + ".") * 4 + "test"), ("a" * 60 + ".") * 4 + "test"),
    "no name": (real_hello(None), None),
    "IPv4": (real_hello("192.0.2.1"), None),
    "IPv6": (real_hello("2001:db8::1"), None),
    "ALPN": (real_hello("good.test", ["h2", "http/1.1"]), "good.test"),
    "long ALPN": (real_hello("good.test", [f"{n:04}" + "x" * 96 for n in range(30)]), "good.test"),
    "TLS 1.2": (real_hello("good.test", maximum=ssl.TLSVersion.TLSv1_2), "good.test"),
    "TLS 1.2, no name": (real_hello(None, maximum=ssl.TLSVersion.TLSv1_2), None),
}


@pytest.mark.parametrize(("data", "name"), REAL.values(), ids=REAL)
def test_real_hellos_are_read_at_their_last_byte(data: bytes, name: str | None) -> None:
    """C2: every prefix says "not yet", the whole has the name, and what follows does not change it."""
    for end in range(len(data)):
        assert parse_client_hello(data[:end]) is None, end
    assert parse_client_hello(data) == ClientHello(name)
    assert parse_client_hello(data + b"\x17\x03\x03\x00\x01x") == ClientHello(name)
    assert parse_client_hello(data + b"\x16") == ClientHello(name)
    assert parse_client_hello(data + b"garbage") == ClientHello(name)


@pytest.mark.parametrize(("data", "name"), REAL.values(), ids=REAL)
@pytest.mark.parametrize("count", [2, 3, 17, MAX_HELLO_RECORDS])
def test_hellos_may_be_split_over_records(data: bytes, name: str | None, count: int) -> None:
    """RFC 8446 section 5.1 allows it; the name is found wherever the cuts fall."""
    message = data[5:]
    again = records(message, -(-len(message) // count))
    assert parse_client_hello(again) == ClientHello(name)
    for end in range(0, len(again), 7):
        assert parse_client_hello(again[:end]) is None, end


def test_a_name_cut_by_a_record_boundary_is_whole() -> None:
    """Every cut of one hello into two records has the same name."""
    message = hello_message([server_name(b"good.test")])
    for cut in range(1, len(message)):
        data = records(message[:cut]) + records(message[cut:])
        assert parse_client_hello(data) == ClientHello("good.test"), cut


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (records(hello_message(None)), None),
        (hello(), None),
        (hello((16, b"")), None),
        (hello((16, b"x"), server_name(b"good.test"), (43, b"y")), "good.test"),
        # Raw: what a name means, or whether it is one, is the policy's to say (A1, A4, C6).
        (hello(server_name(b"evil.test\0.good.test")), "evil.test\0.good.test"),
        (hello(server_name(b"GOOD.test.")), "GOOD.test."),
        (hello(server_name(b"192.0.2.1")), "192.0.2.1"),
        (hello(server_name(b"*.com\r\n")), "*.com\r\n"),
        (hello(server_name(b"a" * 300)), "a" * 300),
    ],
)
def test_the_name_is_handed_over_raw(data: bytes, name: str | None) -> None:
    """C1: the parser finds the one name, and leaves judging it to the policy."""
    assert assert_same_however_it_arrives(data) == ClientHello(name)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(hello(server_name(b"good.test"), server_name(b"good.test")), id="server name twice"),
        pytest.param(hello(server_name(b"good.test"), server_name(b"evil.test")), id="two server name extensions"),
        pytest.param(hello(server_name(b"good.test"), (16, b""), (16, b"")), id="another extension twice"),
        pytest.param(hello(server_name(b"good.test", b"evil.test")), id="two names"),
        pytest.param(hello(server_name(b"good.test", b"good.test")), id="the same name twice"),
        pytest.param(hello(server_name()), id="no name in the list"),
        pytest.param(hello((0, b"")), id="empty extension"),
        pytest.param(hello(server_name(b"")), id="empty name"),
        pytest.param(hello(server_name(b"good.test", kind=1)), id="name of unknown type"),
        pytest.param(hello(server_name("g\u00f6od.test".encode())), id="name not ASCII"),
        pytest.param(hello(server_name(b"good.test\xff")), id="8-bit byte in the name"),
        pytest.param(hello((0, server_name(b"good.test")[1] + b"x")), id="bytes behind the list"),
        pytest.param(hello((0, b"\0\x0c\0\0\x0agood.test")), id="name longer than its list"),
        pytest.param(hello((0, b"\0\x0d\0\0\x09good.test")), id="list longer than its extension"),
        pytest.param(records(hello_message([server_name(b"good.test")], b"x")), id="bytes behind the extensions"),
        pytest.param(records(hello_message([server_name(b"good.test")], b"\0\0")), id="second list of extensions"),
        pytest.param(records(hello_message([server_name(b"good.test")]) + b"x"), id="bytes behind the hello"),
        pytest.param(records(hello_message([server_name(b"good.test")]) * 2), id="two hellos in a record"),
        pytest.param(records(hello_message(None)[:-2] + b"\x02\0"), id="compression methods cut off"),
        pytest.param(records(b"\x01\0\0\0"), id="empty hello"),
        pytest.param(records(b"\x01" + vector(3, b"\x03\x03" + bytes(31))), id="no room for the random"),
        pytest.param(records(b"\x02" + hello_message([])[1:]), id="ServerHello"),
        pytest.param(records(b"\x00" + hello_message([])[1:]), id="HelloRequest"),
        pytest.param(b"\x16\x03\x01\0\0", id="zero-length record"),
        pytest.param(b"\x16\x03\x01\0\0" + hello(server_name(b"good.test")), id="zero-length record in front"),
        pytest.param(records(hello_message([])[:9]) + b"\x16\x03\x01\0\0", id="zero-length record within"),
        pytest.param(records(hello_message([])[:9]) + b"\x17\x03\x03\0\x01x", id="application data within"),
        pytest.param(records(hello_message([])[:9]) + b"\x14\x03\x03\0\x01\x01", id="change of cipher within"),
        pytest.param(b"\x16\x03\x01\x40\x01" + bytes(20), id="record longer than 16 KB"),
        pytest.param(b"\x16\x02\x01\x00\x40" + bytes(64), id="wrong major version"),
        pytest.param(b"\x15\x03\x01\x00\x02\x02\x28", id="alert"),
        pytest.param(b"\x80\x2e\x01\x03\x01\0\x15\0\0\0\x10\x01\0\x80", id="SSLv2-style hello"),
        pytest.param(b"SSH-2.0-OpenSSH_9.6\r\n", id="SSH"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="HTTP"),
        pytest.param(b"\x05\x01\x00", id="SOCKS5"),
        pytest.param(b"\0", id="NUL"),
    ],
)
def test_what_two_readers_could_read_differently_is_refused(data: bytes) -> None:
    """C1, C2: one name or none, in a hello that is nothing but a hello; the verdict does not depend on timing."""
    assert refused(data)
    assert assert_same_however_it_arrives(data) is None


@pytest.mark.parametrize("claimed", [1, 100])
def test_a_record_that_claims_more_than_the_hello_is_refused_before_the_rest_arrives(claimed: int) -> None:
    """C2: cutting the stream behind the hello must not hide that its record goes on."""
    message = hello_message([server_name(b"good.test")])
    data = b"\x16\x03\x01" + (len(message) + claimed).to_bytes(2) + message
    assert refused(data)
    assert refused(data + bytes(claimed))
    assert parse_client_hello(data[:-1]) is None


def test_a_first_byte_that_cannot_begin_tls_is_refused_at_once() -> None:
    """C2: a peer that sends a banner and waits is not waited for."""
    assert parse_client_hello(b"") is None
    for code in range(256):
        assert refused(bytes((code,))) is (code != 0x16)
        assert refused(bytes((0x16, code))) is (code != 3)
        assert refused(b"\x16\x03\x01\x00\x05" + bytes((code,))) is (code != 1)


def test_every_length_of_a_record_header_is_waited_for() -> None:
    """C2: one byte per write, the header alone included, is an ordinary way to arrive."""
    data = hello(server_name(b"good.test"))
    assert [parse_client_hello(data[:end]) for end in range(7)] == [None] * 7


@pytest.mark.parametrize(("size", "accepted"), [(MAX_HELLO_BYTES, True), (MAX_HELLO_BYTES + 1, False), (65_535, False)])
def test_the_size_of_a_hello_is_bounded(size: int, accepted: bool) -> None:
    """C2, I2: 16 KB pass; more is refused as soon as the length is known, not when it has been collected."""
    empty = len(hello_message([server_name(b"good.test"), (21, b"")]))
    message = hello_message([server_name(b"good.test"), (21, bytes(size - empty))])
    assert len(message) == size
    if accepted:
        assert parse_client_hello(records(message)) == ClientHello("good.test")
        assert parse_client_hello(records(message, 300)) == ClientHello("good.test")
    else:
        assert refused(records(message))
        assert refused(records(message)[:9])
        assert refused(records(message, 2)[:14])


def test_a_real_oversized_hello_is_refused() -> None:
    """OpenSSL itself can be made to send more than anybody needs."""
    data = real_hello("good.test", [f"{n:04}" + "x" * 196 for n in range(120)])
    assert len(data) > MAX_HELLO_BYTES
    assert refused(data)


class Counted(bytes):
    """Bytes that count how often they are looked into."""

    looks: int

    def __getitem__(self, key: SupportsIndex | slice) -> int | bytes:  # type: ignore[override]
        self.looks += 1
        return super().__getitem__(key)


@pytest.mark.threat("T-I6")
@pytest.mark.parametrize("size", [1, 2, 5])
def test_tiny_records_cannot_multiply_the_work(size: int) -> None:
    """A hello is read again at each arrival, so the work of one reading is bounded by the number of records."""
    looks = []
    for length in (1_000, 4_000, 16_000):
        message = hello_message([server_name(b"good.test"), (21, bytes(length))])
        data = Counted(records(message, size))
        data.looks = 0
        with pytest.raises(ProtocolError, match="too many records"):
            parse_client_hello(data)
        looks.append(data.looks)
    assert len(set(looks)) == 1
    assert looks[0] <= 5 * MAX_HELLO_RECORDS


def test_the_record_limit_is_exact() -> None:
    """A hello in as many records as are allowed is read; it is refused once that many have not completed it."""
    message = hello_message([server_name(b"good.test")])
    head, last = message[: MAX_HELLO_RECORDS - 1], message[MAX_HELLO_RECORDS - 1 :]
    assert parse_client_hello(records(head, 1) + records(last)) == ClientHello("good.test")
    assert parse_client_hello(records(head, 1)) is None
    assert refused(records(message[:MAX_HELLO_RECORDS], 1))
    assert refused(records(message[:MAX_HELLO_RECORDS], 1) + records(message[MAX_HELLO_RECORDS:]))


@given(
    base=st.sampled_from(
        [
            REAL["name"][0],
            REAL["TLS 1.2"][0],
            hello(server_name(b"good.test")),
            hello((16, b"\0\x03\x02h2"), server_name(b"good.test"), (43, b"\x02\x03\x04")),
            records(hello_message([server_name(b"good.test")]), 20),
        ]
    ),
    changes=mutations([b"\x16\x03\x01", b"\0\0", b"\x16\x03\x01\0\x01\x01", b"\0\x09good.test"]),
)
@settings(max_examples=examples(300), deadline=None)
def test_damage_gives_a_hello_or_a_protocol_error_whatever_the_timing(base: bytes, changes: list[Mutation]) -> None:
    """C2: no other exception, and no verdict that a later byte could overturn."""
    found = assert_same_however_it_arrives(mutate(base, changes))
    event("refused or incomplete" if found is None else "read")


@given(
    data=st.binary(max_size=80), start=st.sampled_from([b"", b"\x16\x03\x01\x00\x40\x01\x00\x00\x3c", b"\x16\x03\x03"])
)
@settings(max_examples=examples(200), deadline=None)
def test_any_bytes_at_all_give_a_hello_or_a_protocol_error(data: bytes, start: bytes) -> None:
    """The same for noise, and for noise behind a plausible beginning."""
    assert_same_however_it_arrives(start + data)
