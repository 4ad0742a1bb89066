"""Bodies of requests: every split has the same result, the length stays right, and a placeholder never leaves whole."""

from __future__ import annotations

import gc
import json
from collections.abc import Sequence
from urllib.parse import parse_qs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exeat.errors import ProtocolError
from exeat.gateway.limits import Memory
from exeat.secrets.misuse import MisuseError
from exeat.secrets.model import Where
from exeat.secrets.stream.codings import KNOWN, BodyFilter
from exeat.secrets.treatment import Treatment
from exeat.secrets.vault import Vault
from tests.support.origins.packing import make_encoder
from tests.support.secrets.samples import VALUE, make_secret, request, response, through, treat
from tests.unit.wire.mutation import cut, cut_points

EVERYWHERE = frozenset(Where)
TOKEN = make_secret(where=EVERYWHERE)
PLACEHOLDER = TOKEN.placeholder
OTHER = make_secret("OTHER", hosts=["other.test:443"], where=EVERYWHERE)
CHUNKED = b"Transfer-Encoding: chunked"


def posted(*fields: bytes, body: bytes | None = None, vault: Vault | None = None) -> Treatment:
    """A request with a body that is treated: of a known length, or chunked."""
    more = [CHUNKED] if body is None else []
    return treat(vault or Vault([TOKEN, OTHER]), request(*more, *fields, method=b"POST", body=body))


def packed(coding: bytes, data: bytes) -> bytes:
    encoder = make_encoder(coding)
    return encoder.feed(data) + encoder.finish()


# Putting values in


@pytest.mark.threat("T-H4")
@given(
    st.lists(st.sampled_from([b"a", b"\r\n", b"exeat_", PLACEHOLDER, PLACEHOLDER[:20], b"\0" * 50]), max_size=12),
    cut_points,
)
def test_every_split_of_a_body_gives_the_same(parts: list[bytes], cuts: list[int]) -> None:
    """One byte at a time, split over chunks."""
    body = b"".join(parts)
    treatment = posted()
    assert (treatment.keeps_length, treatment.whole_body) == (False, 0)
    assert through(treatment.body, cut(body, cuts)) == body.replace(PLACEHOLDER, VALUE)
    assert treatment.names == (("TOKEN",) if PLACEHOLDER in body else ())


@pytest.mark.thorough
@pytest.mark.parametrize("coding", [*KNOWN, b"x-gzip", b"gzip, br"])
@given(cuts=cut_points)
def test_no_value_is_put_into_a_coded_body(coding: bytes, cuts: list[int]) -> None:
    """Packed together with what the program has chosen, it would show in the length of both how far they are alike."""
    treatment = posted(b"Content-Encoding: " + coding)
    assert treatment.keeps_length
    with pytest.raises(ProtocolError, match="send it uncompressed") as caught:
        through(treatment.body, cut(packed(coding, b"some text, then %b, and more" % PLACEHOLDER), cuts))
    assert caught.value.status == 415
    assert treatment.names == ()
    with pytest.raises(MisuseError):
        through(posted(b"Content-Encoding: " + coding).body, cut(packed(coding, OTHER.placeholder), cuts))
    other = packed(coding, b"some text, and no placeholder")
    assert through(posted(b"Content-Encoding: " + coding).body, cut(other, cuts)) == other


@pytest.mark.threat("T-H3")
def test_a_small_body_of_known_length_is_changed_as_a_whole() -> None:
    """Its length can be told before it is sent."""
    body = b"x=%b&y=%b" % (PLACEHOLDER, PLACEHOLDER)
    treatment = posted(b"Content-Type: text/plain", body=body)
    assert treatment.whole_body == 1024 * 1024
    assert treatment.seal(body) == body.replace(PLACEHOLDER, VALUE)
    assert treatment.names == ("TOKEN",)


@pytest.mark.parametrize("coding", KNOWN)
def test_a_small_coded_body_is_refused_before_any_of_it_is_sent(coding: bytes) -> None:
    body = packed(coding, b"key=" + PLACEHOLDER)
    treatment = posted(b"Content-Encoding: " + coding, body=body)
    assert treatment.whole_body == 1024 * 1024
    with pytest.raises(ProtocolError, match="send it uncompressed"):
        treatment.seal(body)
    body = packed(coding, b"key=none" * 20_000)
    assert posted(b"Content-Encoding: " + coding, body=body).seal(body) == body


def test_a_larger_body_is_streamed() -> None:
    treatment = posted(body=b"x" * (1024 * 1024 + 1))
    assert (treatment.whole_body, treatment.keeps_length) == (0, False)
    assert through(treatment.body, [b"a", PLACEHOLDER]) == b"a" + VALUE


@pytest.mark.threat("T-H3")
def test_the_value_is_written_as_the_type_of_the_body_asks() -> None:
    """A quote in JSON, an ampersand in a form."""
    secret = make_secret(value=b'a"b\\c&d=e<f>', where=EVERYWHERE)
    vault = Vault([secret])
    body = b'{"k": "%b"}' % secret.placeholder
    for kind in (b"application/json; charset=utf-8", b"application/vnd.api+json"):
        sealed = posted(b"Content-Type: " + kind, body=body, vault=vault).seal(body)
        assert json.loads(sealed) == {"k": secret.value.decode()}
    body = b"k=%b&l=1" % secret.placeholder
    sealed = posted(b"Content-Type: application/x-www-form-urlencoded", body=body, vault=vault).seal(body)
    assert parse_qs(sealed.decode()) == {"k": [secret.value.decode()], "l": ["1"]}
    body = b'--b\r\nContent-Disposition: form-data; name="k"\r\n\r\n%b\r\n--b--\r\n' % secret.placeholder
    sealed = posted(b"Content-Type: multipart/form-data; boundary=b", body=body, vault=vault).seal(body)
    assert sealed == body.replace(secret.placeholder, secret.value)


@pytest.mark.threat("T-H4")
def test_a_coding_that_we_do_not_know_is_refused() -> None:
    """Never passed by unseen."""
    for coding in (b"compress", b"gzip, exi", b"gzip, gzip, gzip, gzip"):
        with pytest.raises(ProtocolError) as caught:
            posted(b"Content-Encoding: " + coding)
        assert caught.value.status == 415


def test_a_broken_coded_body_is_refused() -> None:
    treatment = posted(b"Content-Encoding: gzip")
    assert treatment.body is not None
    with pytest.raises(ProtocolError) as caught:
        through(treatment.body, [packed(b"gzip", b"text")[:-4]])
    assert caught.value.status == 400


@pytest.mark.parametrize("kind", [b"application/grpc", b"Application/grpc+proto", b"application/grpc-web-text"])
def test_no_value_is_put_into_grpc(kind: bytes) -> None:
    treatment = posted(b"Content-Type: " + kind)
    assert treatment.keeps_length
    assert treatment.body is not None
    message = b"\0\0\0\0\x05hello"
    assert treatment.body.feed(message) == message
    assert treatment.body.feed(PLACEHOLDER[:-1]) == PLACEHOLDER[:-1]
    with pytest.raises(ProtocolError) as caught:
        treatment.body.feed(PLACEHOLDER[-1:])
    assert caught.value.status == 415
    with pytest.raises(MisuseError):
        through(posted(b"Content-Type: " + kind).body, [OTHER.placeholder])


@pytest.mark.parametrize("sent_before", [0, 1, 1_000])
def test_the_cap_counts_head_and_body_together(sent_before: int) -> None:
    """H6."""
    vault = Vault([make_secret(placeholder=b"exeat_ph", where=EVERYWHERE)])
    fields = [b"X: " + b"exeat_ph" * sent_before]
    left = 1_000 - sent_before
    assert through(posted(*fields, vault=vault).body, [b"exeat_ph" * left]) == VALUE * left
    for pieces in ([b"exeat_ph" * (left + 1)], [b"exeat_ph"] * (left + 1)):
        with pytest.raises(ProtocolError) as caught:
            through(posted(*fields, vault=vault).body, pieces)
        assert caught.value.status == 413


def test_a_body_is_not_touched_unless_asked_for() -> None:
    vault = Vault([make_secret()])
    treatment = posted(b"Content-Type: text/plain", vault=vault)
    assert treatment.body is None
    assert treatment.keeps_length
    assert treatment.whole_body == 0


@pytest.mark.threat("T-H1")
@pytest.mark.parametrize("framing", [CHUNKED, b"Content-Length: %d" % (len(VALUE) + 3)])
def test_an_answer_that_begins_before_the_body_ends_is_cleaned_of_what_the_rest_puts_in(framing: bytes) -> None:
    """A server that repeats a body while it comes."""
    treatment = posted()
    _, echo = treatment.begin_response(response(framing))
    assert echo is not None
    assert treatment.body is not None
    sent = treatment.body.feed(b"<%b>\n" % PLACEHOLDER)
    assert sent == b"<%b>\n" % VALUE
    assert echo.feed(sent) + echo.finish() == b"<%b>\n" % PLACEHOLDER


# Watching


def watched(pieces: Sequence[bytes], *fields: bytes, vault: Vault) -> bytes:
    """What has left by the time the placeholder is noticed, which it must be."""
    treatment = treat(vault, request(CHUNKED, *fields, method=b"POST"), host="third.test")
    assert treatment.keeps_length
    assert treatment.body is not None
    left = b""
    with pytest.raises(MisuseError) as caught:
        for piece in pieces:
            left += treatment.body.feed(piece)
    assert caught.value.names == ("TOKEN",)
    assert PLACEHOLDER.decode() not in str(caught.value)
    return left


@given(cut_points)
def test_a_placeholder_in_the_body_never_leaves_whole(cuts: list[int]) -> None:
    """H2, H4."""
    text = b"some text %b and more" % PLACEHOLDER
    left = watched(cut(text, cuts), vault=Vault([TOKEN]))
    assert PLACEHOLDER not in left
    assert text.startswith(left)


@pytest.mark.parametrize("coding", KNOWN)
@given(cuts=cut_points)
def test_a_placeholder_in_a_coded_body_is_noticed(coding: bytes, cuts: list[int]) -> None:
    watched(
        cut(packed(coding, b"some text " + PLACEHOLDER), cuts), b"Content-Encoding: " + coding, vault=Vault([TOKEN])
    )


def test_without_one_the_body_is_passed_as_it_is() -> None:
    vault = Vault([TOKEN])
    for coding, body in [
        (b"identity", b"plain " + PLACEHOLDER[:-1]),
        (b"gzip", packed(b"gzip", b"text")),
        (b"gzip", b"no gzip at all"),
        (b"compress", b"\x1f\x9d not known"),
    ]:
        head = request(b"Content-Encoding: " + coding, method=b"POST", body=body)
        treatment = treat(vault, head, host="third.test")
        assert through(treatment.body, [body[:3], body[3:]]) == body
        assert (treatment.names, treatment.keeps_length, treatment.whole_body) == ((), True, 0)


def test_the_right_place_for_one_secret_is_watched_for_the_others() -> None:
    for treatment in (posted(), posted(vault=Vault([make_secret(), OTHER]))):
        with pytest.raises(MisuseError) as caught:
            through(treatment.body, [b"x", OTHER.placeholder])
        assert caught.value.names == ("OTHER",)
    body = b"x" + OTHER.placeholder
    with pytest.raises(MisuseError):
        posted(body=body).seal(body)


# Memory that is shared


def lend(treatment: Treatment, memory: Memory) -> BodyFilter:
    assert treatment.body is not None
    treatment.body.borrow(memory.lend())
    return treatment.body


@pytest.mark.parametrize("coding", [b"br", b"zstd"])
def test_a_body_that_is_only_watched_is_passed_on_where_there_is_no_memory(coding: bytes) -> None:
    """It is then looked at as it is, and what was borrowed is given back."""
    memory = Memory(2 << 20)
    treatment = posted(b"Content-Encoding: " + coding, vault=Vault([OTHER, make_secret("MORE", where=[Where.HEADERS])]))
    watcher = lend(treatment, memory)
    assert watcher.only_watches
    large = packed(coding, bytes(9 << 20))
    assert watcher.feed(large) == large
    assert memory.used == 0
    with pytest.raises(MisuseError):
        watcher.feed(OTHER.placeholder)


def test_a_body_that_is_only_watched_borrows_until_it_is_closed() -> None:
    memory = Memory(2 << 20)
    treatment = posted(b"Content-Encoding: br", vault=Vault([OTHER, make_secret("MORE", where=[Where.HEADERS])]))
    watcher = lend(treatment, memory)
    watcher.feed(packed(b"br", b"a")[:-1])
    assert memory.used > 0
    watcher.close()
    assert memory.used == 0


@pytest.mark.parametrize("coding", KNOWN)
def test_a_coded_body_that_may_not_have_a_placeholder_borrows(coding: bytes) -> None:
    memory = Memory(1 << 30)
    through = lend(posted(b"Content-Encoding: " + coding), memory)
    assert not through.only_watches
    through.feed(packed(coding, b"text"))
    assert memory.used > 0
    through.close()
    assert memory.used == 0


def test_a_coded_body_that_cannot_be_looked_into_for_lack_of_memory_is_refused() -> None:
    """It cannot be passed on with the placeholder in it, unseen."""
    through = lend(posted(b"Content-Encoding: br"), Memory(1 << 10))
    with pytest.raises(ProtocolError) as caught:
        through.feed(packed(b"br", PLACEHOLDER))
    assert caught.value.status == 503


def test_a_filter_that_nobody_has_any_more_gives_back() -> None:
    memory = Memory(1 << 30)
    treatment = posted(b"Content-Encoding: br")
    lend(treatment, memory).feed(packed(b"br", b"text"))
    assert memory.used > 0
    del treatment
    gc.collect()
    assert memory.used == 0
