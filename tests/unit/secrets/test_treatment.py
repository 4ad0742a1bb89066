"""Requests: values go where they may, in the form that the place asks for, and placeholders go nowhere else."""

from __future__ import annotations

import base64
import json
from urllib.parse import parse_qs, unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exeat.errors import ProtocolError
from exeat.policy import Name
from exeat.secrets.misuse import Misuse, MisuseError
from exeat.secrets.model import Injection, Secret, Where
from exeat.secrets.treatment import Treatment, treat_request
from exeat.secrets.vault import Vault
from exeat.wire.http1 import RequestHead
from tests.support.secrets.samples import HOST, VALUE, lines_of, make_secret, request, response, treat

TOKEN = make_secret()
PLACEHOLDER = TOKEN.placeholder
EVERYWHERE = frozenset(Where)


def outcome(
    vault: Vault,
    head: RequestHead,
    path: bytes = b"/",
    *,
    host: str = "other.test",
    port: int = 443,
    secure: bool = True,
) -> Treatment | Misuse | None:
    return treat_request(vault, vault.bound_to(Name(host), port), head, path, secure=secure, authority=host.encode())


# Headers


@pytest.mark.parametrize(
    "line",
    [
        b"Authorization: Bearer %b",
        b"authorization:%b",
        b"X-Api-Key:\t%b  ",
        b"Cookie: a=%b; b=%b",
        b"X-Odd: <%b%b>%b",
        b"User-Agent: \xff%b\x80",
    ],
)
def test_every_occurrence_in_a_header_is_replaced_and_nothing_else(line: bytes) -> None:
    copies = line.count(b"%b")
    other = [b"X-Before: 1,  2", b"x-AFTER:  y "]
    treatment = treat(Vault([TOKEN]), request(other[0], line % ((PLACEHOLDER,) * copies), other[1]))
    assert lines_of(treatment.passed) == [other[0], line % ((VALUE,) * copies), other[1]]
    assert treatment.names == ("TOKEN",)
    assert treatment.path == b"/"
    assert treatment.body is None


def test_a_header_name_is_never_replaced() -> None:
    head = request(PLACEHOLDER + b": " + PLACEHOLDER)
    assert lines_of(treat(Vault([TOKEN]), head).passed) == [PLACEHOLDER + b": " + VALUE]


@pytest.mark.threat("T-H6")
def test_what_was_put_in_is_not_searched_again() -> None:
    """A value that has another placeholder in it must not bring that one's value in."""
    inner = make_secret("INNER", value=b"inner-value")
    outer = make_secret("OUTER", value=b"has-%b-in-it" % inner.placeholder)
    treatment = treat(Vault([inner, outer]), request(b"X: " + outer.placeholder), b"/?q=" + outer.placeholder)
    assert lines_of(treatment.passed) == [b"X: " + outer.value]
    assert treatment.path == b"/?q=" + outer.value
    assert treatment.names == ("OUTER",)


@pytest.mark.threat("T-H6")
def test_a_placeholder_made_of_two_others_is_no_placeholder() -> None:
    """Taking one out of the middle of another must not make a third."""
    nested = PLACEHOLDER[:9] + PLACEHOLDER + PLACEHOLDER[9:]
    treatment = treat(Vault([TOKEN]), request(b"X: " + nested))
    assert lines_of(treatment.passed) == [b"X: " + PLACEHOLDER[:9] + VALUE + PLACEHOLDER[9:]]


@pytest.mark.threat("T-H6")
def test_a_guess_is_passed_as_it_is() -> None:
    """Only the placeholder of this run, all of it, counts."""
    line = b"Authorization: Bearer " + PLACEHOLDER[:-1] + b"!"
    treatment = treat(Vault([TOKEN]), request(line))
    assert lines_of(treatment.passed) == [line]
    assert treatment.names == ()


@pytest.mark.threat("T-H3")
@pytest.mark.parametrize("value", [b"x\r\nA: b", b"x\ny", b"x\0y", b"\x7f"])
def test_a_value_that_would_break_out_of_its_header_is_refused(value: bytes) -> None:
    """Such a value does not load; one that was renewed later must not get through either."""
    secret = make_secret()
    vault = Vault([secret])
    secret.renew(value)
    with pytest.raises(ProtocolError) as caught:
        treat(vault, request(b"Authorization: " + secret.placeholder))
    assert caught.value.status == 502
    assert value.decode("latin-1") not in str(caught.value)


def test_a_renewed_value_is_used_at_once() -> None:
    secret = make_secret()
    vault = Vault([secret])
    head = request(b"X: " + secret.placeholder)
    assert VALUE in treat(vault, head).passed
    secret.renew(b"newer-value")
    assert lines_of(treat(vault, head).passed) == [b"X: newer-value"]


@pytest.mark.threat("T-H6")
def test_the_number_of_substitutions_is_capped() -> None:
    """Many copies."""
    vault = Vault([make_secret(placeholder=b"exeat_ph")])
    assert treat(vault, request(b"X: " + b"exeat_ph" * 1_000)).passed.count(VALUE) == 1_000
    with pytest.raises(ProtocolError) as caught:
        treat(vault, request(b"X: " + b"exeat_ph" * 1_000), b"/?exeat_ph")
    assert caught.value.status == 413


# Basic


@pytest.mark.parametrize("credentials", [b"%b:x-oauth-basic", b"user:%b", b"%b", b"\xff%b:%b"])
@pytest.mark.parametrize("scheme", [b"Authorization: Basic ", b"authorization:\tBASIC  "])
def test_basic_credentials_are_decoded_and_encoded_again(credentials: bytes, scheme: bytes) -> None:
    """H4."""
    copies = credentials.count(b"%b")
    sent = base64.b64encode(credentials % ((PLACEHOLDER,) * copies))
    treatment = treat(Vault([TOKEN]), request(scheme + sent, b"X: y"))
    first, second = lines_of(treatment.passed)
    assert first.startswith(scheme)
    assert base64.b64decode(first[len(scheme) :]) == credentials % ((VALUE,) * copies)
    assert second == b"X: y"
    assert treatment.names == ("TOKEN",)


@pytest.mark.parametrize("text", [b"%%%", b"YQ=", b"YQ==YQ==", b"Y Q==", b"", base64.b64encode(b"user:password")])
def test_other_basic_credentials_are_left_alone(text: bytes) -> None:
    line = b"Authorization: Basic " + text
    treatment = treat(Vault([TOKEN]), request(line))
    assert lines_of(treatment.passed) == [line]
    assert treatment.names == ()


def test_a_placeholder_for_credentials_that_are_encoded_already() -> None:
    treatment = treat(Vault([TOKEN]), request(b"Authorization: Basic " + PLACEHOLDER))
    assert lines_of(treatment.passed) == [b"Authorization: Basic " + VALUE]


def test_only_the_parts_that_were_asked_for_are_replaced() -> None:
    basic = b"Authorization: Basic " + base64.b64encode(b"u:" + PLACEHOLDER)
    head = request(basic, b"X: " + PLACEHOLDER)
    for where, changed in [
        (Where.HEADERS, (False, True, False, False)),
        (Where.BASIC, (True, False, False, False)),
        (Where.PATH, (False, False, True, False)),
        (Where.QUERY, (False, False, False, True)),
    ]:
        treatment = treat(Vault([make_secret(where=[where])]), head, b"/%b?%b" % (PLACEHOLDER, PLACEHOLDER))
        first, second = lines_of(treatment.passed)
        path, _, query = treatment.path.partition(b"?")
        found = (first != basic, VALUE in second, path != b"/" + PLACEHOLDER, query != PLACEHOLDER)
        assert found == changed, where


# Path and query


def test_in_a_url_the_value_is_percent_encoded() -> None:
    vault = Vault([make_secret(where=EVERYWHERE)])
    treatment = treat(vault, request(), b"/a%%2Fb/%b/c?k=%b&x=%%20+&%b=1" % ((PLACEHOLDER,) * 3))
    path, _, query = treatment.path.partition(b"?")
    assert unquote_to_bytes(path) == b"/a/b/" + VALUE + b"/c"
    assert parse_qs(query.decode()) == {"k": [VALUE.decode()], "x": ["  "], VALUE.decode(): ["1"]}
    assert treatment.path.startswith(b"/a%2Fb/")


def test_a_path_is_not_touched_unless_asked_for() -> None:
    path = b"/" + PLACEHOLDER
    assert treat(Vault([TOKEN]), request(), path).path == path


# Headers that are set


def test_a_header_is_set_on_every_request_whatever_the_program_sent() -> None:
    vault = Vault([make_secret(inject=Injection("X-Api-Key", "Token {value}!"))])
    for sent in ([], [b"x-API-key: mine", b"X-Api-Key:theirs"], [b"X-Api-Key: " + PLACEHOLDER]):
        treatment = treat(vault, request(b"Accept: */*", *sent, b"X-Api-Key-Id: 1"))
        expected = [b"Accept: */*", b"X-Api-Key-Id: 1", b"X-Api-Key: Token " + VALUE + b"!"]
        assert lines_of(treatment.passed) == expected
        assert treatment.names == ("TOKEN",)


def test_a_header_is_not_set_for_other_places() -> None:
    vault = Vault([make_secret(inject=Injection("X-Api-Key", "{value}"))])
    assert outcome(vault, request()) is None
    assert treat(vault, request(b"X: y"), host=HOST, port=8443).passed == b"\r\nX: y"
    assert treat(vault, request(b"X-Api-Key: mine"), secure=False).passed == b"\r\nX-Api-Key: mine"
    assert vault.redaction() is None


# B6: what a program can do to the header that carries the credential


@pytest.mark.parametrize("line", [b"Connection: authorization", b"Connection: close, Authorization"])
def test_the_credential_cannot_be_named_as_belonging_to_this_hop(line: bytes) -> None:
    with pytest.raises(ProtocolError):
        request(b"Authorization: " + PLACEHOLDER, line)


def test_what_is_for_a_proxy_gets_no_value_and_is_not_sent() -> None:
    treatment = treat(Vault([TOKEN]), request(b"Proxy-Authorization: Bearer " + PLACEHOLDER))
    assert treatment.passed == b""
    assert treatment.names == ()


# H2: the wrong place


SPELLINGS = [
    pytest.param(request(b"Authorization: Bearer " + PLACEHOLDER), b"/", id="header"),
    pytest.param(request(PLACEHOLDER + b": x"), b"/", id="header name"),
    pytest.param(request(b"Authorization: Basic " + base64.b64encode(b"u:" + PLACEHOLDER)), b"/", id="basic"),
    pytest.param(request(b"Cookie: s=" + base64.urlsafe_b64encode(b"us:" + PLACEHOLDER)), b"/", id="base64"),
    pytest.param(request(), b"/a/" + PLACEHOLDER, id="path"),
    pytest.param(request(), b"/?q=" + PLACEHOLDER, id="query"),
    pytest.param(request(), b"/?q=%65" + PLACEHOLDER[1:], id="one letter encoded"),
    pytest.param(request(), b"/?q=" + b"".join(b"%%%02x" % each for each in PLACEHOLDER), id="all encoded"),
]


@pytest.mark.parametrize(("head", "path"), SPELLINGS)
def test_a_placeholder_to_another_place_is_stopped(head: RequestHead, path: bytes) -> None:
    vault = Vault([TOKEN])
    places = [("other.test", 443, True), (HOST, 80, False), (HOST, 443, False), (HOST, 8443, True)]
    for host, port, secure in places:
        found = outcome(vault, head, path, host=host, port=port, secure=secure)
        assert isinstance(found, Misuse), (host, port, secure)
        assert found.names == ("TOKEN",)
        assert "TOKEN" in found.sentence
        assert VALUE.decode() not in repr(found)
        assert PLACEHOLDER.decode() not in repr(found)
    assert vault.redaction() is None
    assert isinstance(outcome(vault, head, path, host=HOST), Treatment)


@pytest.mark.parametrize(("head", "path"), SPELLINGS)
def test_it_is_passed_as_the_useless_string_where_so_configured(head: RequestHead, path: bytes) -> None:
    vault = Vault([make_secret(refuse_wrong_host=False)])
    assert outcome(vault, head, path) is None
    treatment = treat(vault, head, path, secure=False)
    assert (treatment.passed, treatment.path, treatment.names) == (head.passed, path, ())


def test_one_secret_of_two_at_the_wrong_place_stops_the_request() -> None:
    vault = Vault([TOKEN, make_secret("OTHER", hosts=["other.test:443"])])
    head = request(b"X: %b %b" % (PLACEHOLDER, vault.placeholders["OTHER"]))
    found = outcome(vault, head, host=HOST)
    assert isinstance(found, Misuse)
    assert found.names == ("OTHER",)
    both = outcome(vault, head, host="third.test")
    assert isinstance(both, Misuse)
    assert both.names == ("OTHER", "TOKEN")


def test_there_is_nothing_to_do_for_a_request_without_secrets() -> None:
    vault = Vault([TOKEN])
    assert outcome(vault, request(b"Accept: */*"), b"/?a=%20") is None
    assert outcome(Vault([make_secret(refuse_wrong_host=False)]), request(method=b"POST", body=b"x")) is None


# What is asked for


@pytest.mark.parametrize("sent", [b"gzip, deflate", b"gzip;q=1.0,br;q=0.9 , ZSTD", b"", b"*", b"gzip;q=0, *;q=1"])
def test_whatever_is_accepted_nothing_packed_is_asked_for(sent: bytes) -> None:
    head = request(b"accept-Encoding: " + sent, b"X: *", b"Accept-Encoding: br")
    assert lines_of(treat(Vault([TOKEN]), head).passed) == [
        b"accept-Encoding: identity",
        b"X: *",
        b"Accept-Encoding: identity",
    ]


def test_extensions_of_websockets_and_codings_of_grpc_messages_are_not_asked_for() -> None:
    head = request(
        b"Connection: Upgrade",
        b"Upgrade: websocket",
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        b"Sec-WebSocket-Extensions: permessage-deflate",
        b"grpc-accept-encoding: identity, gzip",
        b"Sec-WebSocket-Protocol: x",
    )
    assert lines_of(treat(Vault([TOKEN]), head).passed) == [
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        b"Sec-WebSocket-Protocol: x",
    ]


# Trailers


def test_trailers_are_treated_like_headers() -> None:
    vault = Vault([TOKEN, make_secret("OTHER", hosts=["other.test:443"])])
    treatment = treat(vault, request(b"Transfer-Encoding: chunked", method=b"POST"))
    assert treatment.treat_request_trailers([(b"X", PLACEHOLDER), (b"Y", b"1")]) == [(b"X", VALUE), (b"Y", b"1")]
    assert treatment.names == ("TOKEN",)
    with pytest.raises(MisuseError) as caught:
        treatment.treat_request_trailers([(b"X", vault.placeholders["OTHER"])])
    assert caught.value.names == ("OTHER",)


# Properties


@given(st.lists(st.sampled_from([b"a", b" ", b"\xff", b"exeat_", PLACEHOLDER, PLACEHOLDER[:20]]), max_size=12))
def test_a_header_is_what_the_program_meant_it_to_be(parts: list[bytes]) -> None:
    treatment = treat(Vault([TOKEN]), request(b"X: |" + b"".join(parts) + b"|"))
    assert lines_of(treatment.passed) == [b"X: |" + b"".join(parts).replace(PLACEHOLDER, VALUE) + b"|"]
    assert bool(treatment.names) == (PLACEHOLDER in b"".join(parts))


@given(st.binary(max_size=40))
def test_a_value_in_json_or_basic_is_read_back_as_it_is(value: bytes) -> None:
    secret: Secret = make_secret(value=value, where=EVERYWHERE)
    head = request(b"Authorization: Basic " + base64.b64encode(b"u:" + secret.placeholder))
    line = lines_of(treat(Vault([secret]), head, b"/" + secret.placeholder).passed)[0]
    assert base64.b64decode(line.rpartition(b" ")[2]) == b"u:" + value
    assert unquote_to_bytes(treat(Vault([secret]), head, b"/" + secret.placeholder).path) == b"/" + value
    document = b'{"key": "%b"}' % secret.placeholder
    treatment = treat(Vault([secret]), request(b"Content-Type: application/json", method=b"POST", body=document))
    sealed = treatment.seal(document)
    assert json.loads(sealed.decode("latin-1"))["key"].encode("latin-1") == value


def test_a_request_counts_before_its_response() -> None:
    vault = Vault([TOKEN])
    treatment = treat(vault, request(b"Authorization: " + PLACEHOLDER))
    head = response(b"X-Echo: " + VALUE, b"Content-Length: 0")
    head, body = treatment.begin_response(head)
    assert body is None
    assert lines_of(head.passed)[0] == b"X-Echo: " + PLACEHOLDER


# The same request again


def test_it_is_current_until_a_value_in_it_is_renewed() -> None:
    """That of a secret which was not put in changes nothing."""
    token, other = make_secret(), make_secret("OTHER", value=b"other-value-0123456789")
    vault = Vault([token, other])
    treated = treat(vault, request(b"Authorization: Bearer " + token.placeholder))
    assert treated.is_repeatable
    assert treated.is_current()
    other.renew(b"newer-other-value-0123456789")
    assert treated.is_current()
    token.renew(b"newer-value-0123456789")
    assert not treated.is_current()


def test_without_a_value_in_it_it_stays_current() -> None:
    token = make_secret()
    treated = treat(Vault([token]), request())
    token.renew(b"newer-value-0123456789")
    assert treated.is_repeatable
    assert treated.is_current()


def test_a_header_that_is_set_counts() -> None:
    token = make_secret(inject=Injection("X-Token", "{value}"))
    treated = treat(Vault([token]), request())
    assert treated.is_current()
    token.renew(b"newer-value-0123456789")
    assert not treated.is_current()


@pytest.mark.parametrize("fields", [[b"Content-Length: 3"], [b"Transfer-Encoding: chunked"]])
def test_a_request_with_a_body_is_no_pattern_for_another(fields: list[bytes]) -> None:
    token = make_secret(where=[Where.HEADERS, Where.BODY])
    assert not treat(Vault([token]), request(*fields, method=b"POST")).is_repeatable


# The same answer again


def test_the_same_answer_becomes_the_same() -> None:
    """With a filter of its own for each body, which begins with nothing."""
    token = make_secret()
    vault = Vault([token])
    treated = treat(vault, request(b"Authorization: Bearer " + token.placeholder))
    head = response(b"Content-Length: 30", b"Server: " + VALUE)
    first, body = treated.begin_response(head)
    assert VALUE not in first.passed
    assert body is not None
    assert body.feed(VALUE[:10]) == b""
    second, other = treated.begin_response(head)
    assert second == first
    assert other is not None
    assert other.feed(VALUE[10:]) + other.finish() == VALUE[10:]
    assert treated.begin_response(response(b"Content-Length: 30", b"Server: else"))[0].passed == b"\r\nServer: else"


@pytest.mark.parametrize("is_first", [True, False])
def test_what_is_given_out_between_two_answers_is_taken_from_the_second(is_first: bool) -> None:
    """By another request, or by a renewal; where nothing was given out before, too."""
    token, other = make_secret(), make_secret("OTHER", value=b"other-value-0123456789")
    vault = Vault([token, other])
    treated = treat(vault, request() if is_first else request(b"Authorization: Bearer " + token.placeholder))
    head = response(b"Content-Length: 30", b"Server: " + other.value)
    assert other.value in treated.begin_response(head)[0].passed
    assert other.value in treated.begin_response(head)[0].passed
    vault.note_injected(other)
    begun, body = treated.begin_response(head)
    assert other.value not in begun.passed
    assert body is not None
    assert other.value not in (body.clean_whole(b"a " + other.value) or other.value)


@pytest.mark.parametrize(
    "fields", [[b"Content-Encoding: gzip"], [b"Content-Type: application/grpc"], [b"X: " + b"y" * 2_048]]
)
def test_an_answer_that_is_long_or_read_in_parts_is_begun_each_time(fields: list[bytes]) -> None:
    token = make_secret()
    treated = treat(Vault([token]), request(b"Authorization: Bearer " + token.placeholder))
    head = response(b"Content-Length: 30", *fields)
    first, second = (treated.begin_response(head) for _ in range(2))
    assert first[0] == second[0]
    assert treated._last_answer is None
