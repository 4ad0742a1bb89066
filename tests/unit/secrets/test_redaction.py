"""Responses: no form of a value that was given out comes back, and all else comes back as it was."""

from __future__ import annotations

import base64
import json
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exeat.errors import ProtocolError
from exeat.policy import Name
from exeat.secrets.model import Where
from exeat.secrets.stream.codings import KNOWN
from exeat.secrets.stream.forms import reflected_forms
from exeat.secrets.treatment import Treatment, treat_request
from exeat.secrets.vault import Vault
from exeat.wire.http1 import ResponseHead
from tests.support.origins.packing import make_encoder
from tests.support.secrets.samples import VALUE, lines_of, make_secret, request, response, through, treat
from tests.unit.wire.mutation import cut, cut_points

TOKEN = make_secret()
PLACEHOLDER = TOKEN.placeholder
FORMS = reflected_forms(VALUE)
CHUNKED = b"Transfer-Encoding: chunked"


def asked(vault: Vault | None = None) -> Treatment:
    """A request into which the value was put."""
    return treat(vault or Vault([TOKEN]), request(b"Authorization: Bearer " + PLACEHOLDER))


def packed(coding: bytes, data: bytes) -> bytes:
    encoder = make_encoder(coding)
    return encoder.feed(data) + encoder.finish()


# H1: reflection


@pytest.mark.parametrize("form", FORMS)
def test_every_form_becomes_the_placeholder_again(form: bytes) -> None:
    head = response(b"X-Echo: <%b>" % form, b"Set-Cookie: %b=%b" % (form, form), CHUNKED, line=b"HTTP/1.1 200 " + form)
    treatment = asked()
    head, body = treatment.begin_response(head)
    assert head.reason == PLACEHOLDER
    assert lines_of(head.passed) == [b"X-Echo: <%b>" % PLACEHOLDER, b"Set-Cookie: %b=%b" % (PLACEHOLDER, PLACEHOLDER)]
    assert through(body, [b"a" + form, form + b"z"]) == b"a%b%bz" % (PLACEHOLDER, PLACEHOLDER)
    assert treatment.redact_trailers([(b"X", form), (b"Y", b"1")]) == [(b"X", PLACEHOLDER), (b"Y", b"1")]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "echo",
    [
        json.dumps({"Authorization": "Bearer " + VALUE.decode()}).encode(),
        base64.b64encode(b"user:" + VALUE + b":rest"),
        base64.urlsafe_b64encode(b"x" + VALUE),
        quote("https://x.test/?q=" + VALUE.decode()).encode(),
        VALUE.hex().encode(),
    ],
)
@given(cuts=cut_points)
def test_an_echo_gives_nothing_away_however_it_is_cut(echo: bytes, cuts: list[int]) -> None:
    _, body = asked().begin_response(response(CHUNKED))
    whole = through(asked().begin_response(response(CHUNKED))[1], [echo])
    assert through(body, cut(echo, cuts)) == whole
    assert PLACEHOLDER in whole
    assert not any(form in whole for form in FORMS)


@pytest.mark.thorough
@pytest.mark.parametrize("coding", [*KNOWN, b"x-gzip", b"gzip, br"])
@given(cuts=cut_points)
def test_a_coded_response_is_decoded_and_sent_on_as_it_is(coding: bytes, cuts: list[int]) -> None:
    """H4."""
    data = packed(coding, b"before " + VALUE + b" after")
    fields = [b"Content-Encoding: " + coding, b"Content-Length: %d" % len(data), b"Vary: Accept-Encoding", b'ETag: "x"']
    head = response(*fields)
    head, body = asked().begin_response(head)
    assert lines_of(head.passed) == [b"Vary: Accept-Encoding", b'ETag: "x"']
    assert (head.length, head.chunked) == (None, True)
    assert through(body, cut(data, cuts)) == b"before " + PLACEHOLDER + b" after"


@pytest.mark.parametrize(
    ("line", "coding"),
    [
        (b"HTTP/1.1 200 OK", b"compress"),
        (b"HTTP/1.1 200 OK", b"gzip, exi"),
        (b"HTTP/1.1 206 Partial Content", b"gzip"),
    ],
)
def test_a_response_that_we_cannot_read_is_refused(line: bytes, coding: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        asked().begin_response(response(b"Content-Encoding: " + coding, CHUNKED, line=line))
    assert caught.value.status == 502


@pytest.mark.parametrize("data", [packed(b"gzip", VALUE)[:-4], b"not gzip", packed(b"gzip", VALUE) + b"x"])
def test_a_coded_response_that_is_broken_is_refused(data: bytes) -> None:
    _, body = asked().begin_response(response(b"Content-Encoding: gzip", CHUNKED))
    with pytest.raises(ProtocolError) as caught:
        through(body, [data])
    assert caught.value.status == 502


# Lengths


def test_a_body_with_a_length_loses_it() -> None:
    head = response(b"content-length: 40", b"Content-Type: text/plain", b"Content-MD5: x")
    head, body = asked().begin_response(head)
    assert body is not None
    assert (head.length, head.chunked) == (None, True)
    assert lines_of(head.passed) == [b"Content-Type: text/plain", b"Content-MD5: x"]


def test_a_body_that_ends_with_the_connection_is_chunked() -> None:
    head = response(b"X: y")
    head, body = asked().begin_response(head)
    assert body is not None
    assert (head.length, head.chunked) == (None, True)


@pytest.mark.parametrize(
    "head",
    [
        response(b"Content-Length: 23", b"X: " + VALUE, to_head=True),
        response(b"Content-Encoding: compress", b"X: " + VALUE, CHUNKED, to_head=True),
        response(b"X: " + VALUE, line=b"HTTP/1.1 204 No Content"),
        response(b"Content-Length: 23", b"X: " + VALUE, line=b"HTTP/1.1 304 Not Modified"),
        response(b"Content-Length: 0", b"X: " + VALUE),
        response(b"X: " + VALUE, line=b"HTTP/1.1 103 Early Hints"),
    ],
)
def test_a_response_without_a_body_keeps_its_head_but_for_the_value(head: ResponseHead) -> None:
    before = lines_of(head.passed)
    head, body = asked().begin_response(head)
    assert body is None
    assert (head.length, head.chunked) == (0, False)
    assert lines_of(head.passed) == [line.replace(VALUE, PLACEHOLDER) for line in before]


def test_a_length_is_never_taken_for_a_value() -> None:
    secret = make_secret(value=b"12345678")
    treatment = treat(Vault([secret]), request(b"X: " + secret.placeholder))
    head = response(b"Content-Length: 12345678", b"X: 12345678", to_head=True)
    head, _ = treatment.begin_response(head)
    assert lines_of(head.passed) == [b"Content-Length: 12345678", b"X: " + secret.placeholder]


# What is looked for, and when


def test_nothing_is_done_while_nothing_was_given_out() -> None:
    treatment = treat(Vault([TOKEN]), request())
    head = response(b"Content-Length: 23", b"X: " + VALUE)
    sent, body = treatment.begin_response(head)
    assert sent == head
    assert body is not None
    data = b"a" + VALUE
    assert body.feed(data) is data, "passed on, not looked at"
    assert body.finish() == b""
    assert treatment.redact_trailers([(b"X", VALUE)]) == [(b"X", VALUE)]


def test_a_value_given_out_earlier_is_found_in_later_responses() -> None:
    other = make_secret("OTHER", value=b"never-given-out-0123")
    vault = Vault([TOKEN, other])
    asked(vault)
    _, body = treat(vault, request()).begin_response(response(CHUNKED))
    assert through(body, [VALUE + b" " + other.value]) == PLACEHOLDER + b" " + other.value


@pytest.mark.threat("T-H1")
@pytest.mark.parametrize("coding", [b"identity", *KNOWN])
def test_a_stream_that_began_before_is_cleaned_of_what_was_given_out_since(coding: bytes) -> None:
    """A program that opens a stream of events first, and then has its request repeated there."""
    vault = Vault([TOKEN, make_secret("OTHER", value=b"another-value-0123456")])
    _, body = treat(vault, request()).begin_response(response(b"Content-Encoding: " + coding, CHUNKED))
    encoder = make_encoder(coding)
    assert body is not None
    assert body.feed(encoder.feed(b"data: 1\n\n")) == b"data: 1\n\n"
    asked(vault)
    assert body.feed(encoder.feed(b"data: %b\n\n" % VALUE)) == b"data: %b\n\n" % PLACEHOLDER
    assert body.feed(encoder.feed(b"data: another-")) == b""
    held = body.feed(encoder.feed(VALUE[:7]))
    treat(vault, request(b"X: " + vault.placeholders["OTHER"]))
    rest = body.feed(encoder.feed(VALUE[7:] + b"another-value-0123456\n"))
    assert held + rest == b"data: another-" + PLACEHOLDER + vault.placeholders["OTHER"] + b"\n"
    assert body.feed(encoder.finish()) + body.finish() == b""


@given(cuts=cut_points)
def test_a_counted_body_that_began_before_keeps_its_length(cuts: list[int]) -> None:
    vault = Vault([TOKEN])
    text = b"before %b after" % VALUE
    head = response(b"Content-Length: %d" % (len(text) + 6))
    head, body = treat(vault, request()).begin_response(head)
    assert body is not None
    assert (head.length, head.chunked) == (len(text) + 6, False)
    assert body.feed(b"begin ") == b"begin "
    asked(vault)
    cleaned = through(body, cut(text, cuts))
    assert cleaned == text.replace(VALUE, PLACEHOLDER[: len(VALUE)].ljust(len(VALUE), b"*"))


@pytest.mark.parametrize("coding", KNOWN)
def test_a_counted_coded_body_is_decoded_from_the_start(coding: bytes) -> None:
    vault = Vault([TOKEN])
    data = packed(coding, b"x" * 2_000 + VALUE)
    head = response(b"Content-Encoding: " + coding, b"Content-Length: %d" % len(data))
    head, body = treat(vault, request()).begin_response(head)
    assert body is not None
    assert (head.length, head.chunked, lines_of(head.passed)) == (None, True, [])
    began = body.feed(data[:4])
    asked(vault)
    assert began + body.feed(data[4:]) + body.finish() == b"x" * 2_000 + PLACEHOLDER


@pytest.mark.parametrize(
    ("line", "fields"),
    [
        (b"HTTP/1.1 200 OK", [b"Content-Encoding: compress"]),
        (b"HTTP/1.1 206 Partial Content", [b"Content-Encoding: gzip"]),
        (b"HTTP/1.1 200 OK", [b"Content-Type: application/grpc", b"grpc-encoding: gzip"]),
    ],
)
@pytest.mark.parametrize("framing", [CHUNKED, b"Content-Length: 100"])
def test_what_could_not_be_searched_later_is_refused_at_once(line: bytes, fields: list[bytes], framing: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        treat(Vault([TOKEN]), request()).begin_response(response(*fields, framing, line=line))
    assert caught.value.status == 502


def test_what_trailers_may_put_in_counts_as_given_out() -> None:
    """Its answer may have begun by then."""
    vault = Vault([TOKEN, make_secret("QUERY", where=[Where.QUERY], value=b"not-for-headers-0123")])
    treatment = treat(vault, request(CHUNKED, method=b"POST"))
    assert vault.redaction() is None
    head = response(b"X-Echo: %b not-for-headers-0123" % VALUE, b"Content-Length: 100")
    head, body = treatment.begin_response(head)
    assert lines_of(head.passed) == [b"X-Echo: %b not-for-headers-0123" % PLACEHOLDER]
    assert through(body, [VALUE]) == PLACEHOLDER


def test_trailers_that_came_before_the_answer_count_as_what_they_are() -> None:
    vault = Vault([TOKEN])
    treatment = treat(vault, request(CHUNKED, method=b"POST"))
    assert treatment.treat_request_trailers([(b"X", b"y")]) == [(b"X", b"y")]
    treatment.begin_response(response(CHUNKED))
    assert vault.redaction() is None


def test_events_are_not_delayed() -> None:
    _, body = asked().begin_response(response(b"Content-Type: text/event-stream", CHUNKED))
    assert body is not None
    for event in (b"data: 1\n\n", b": ping\n\n", b"data: %b\n\n" % FORMS[-1][:10]):
        assert body.feed(event) == event


def test_bytes_that_only_begin_like_a_value_are_not_lost() -> None:
    _, body = asked().begin_response(response(CHUNKED))
    assert through(body, [b"x" + VALUE[:-1]]) == b"x" + VALUE[:-1]


# Places without a secret


def test_a_place_without_secrets_costs_nothing() -> None:
    vault = Vault([TOKEN])
    asked(vault)
    bound = vault.bound_to(Name("other.test"), 443)
    assert bound == ()
    assert treat_request(vault, bound, request(), b"/", secure=True, authority=b"other.test") is None


@pytest.mark.parametrize(("authority", "secure"), [(b"api.good.test", False), (b"api.good.test:8443", True)])
def test_the_same_host_elsewhere_is_searched_too(authority: bytes, secure: bool) -> None:
    """Over plain HTTP or at another port nothing is put in, and what was given out is taken out."""
    vault = Vault([TOKEN])
    head = request(b"Accept-Encoding: gzip, exi", b"Sec-WebSocket-Extensions: x")
    treatment = treat_request(vault, (), head, b"/", secure=secure, authority=authority)
    assert isinstance(treatment, Treatment)
    assert lines_of(treatment.passed) == [b"Accept-Encoding: identity"]
    asked(vault)
    answer = response(b"X: " + VALUE, CHUNKED)
    answer, body = treatment.begin_response(answer)
    assert through(body, [VALUE]) == PLACEHOLDER
    assert lines_of(answer.passed) == [b"X: " + PLACEHOLDER]
    assert treatment.redact_trailers([(b"X", VALUE)]) == [(b"X", PLACEHOLDER)]
    assert treatment.leak_guard() is not None
    assert treatment.names == ()


# gRPC


def test_the_lengths_in_grpc_stay_right() -> None:
    treatment = asked()
    head = response(b"Content-Type: application/grpc", CHUNKED)
    text = b"echo " + VALUE
    message = b"\0" + len(text).to_bytes(4, "big") + text
    cleaned = through(treatment.begin_response(head)[1], [message[:9], message[9:]])
    assert len(cleaned) == len(message)
    assert cleaned[:10] == message[:10]
    assert VALUE not in cleaned


def test_compressed_grpc_messages_are_refused() -> None:
    for coding, refused in [(b"identity", False), (b"gzip", True)]:
        head = response(b"Content-Type: application/grpc+proto", b"grpc-encoding: " + coding, CHUNKED)
        if refused:
            with pytest.raises(ProtocolError) as caught:
                asked().begin_response(head)
            assert caught.value.status == 502
        else:
            head, body = asked().begin_response(head)
            assert body is not None


@given(st.binary(min_size=8, max_size=60), st.binary(max_size=30), cut_points)
def test_no_value_of_any_kind_comes_back(value: bytes, around: bytes, cuts: list[int]) -> None:
    secret = make_secret(value=value, placeholder=b"exeat_0123456789abcdefghijklmnopqrstuv")
    vault = Vault([secret])
    vault.note_injected(secret)
    _, body = treat(vault, request()).begin_response(response(CHUNKED))
    cleaned = through(body, cut(around + value + around, cuts))
    assert secret.placeholder in cleaned
    if value not in around + secret.placeholder + around:
        assert value not in cleaned
