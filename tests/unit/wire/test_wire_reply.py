"""Our own replies: valid for two HTTP readers, and deaf to whatever text they quote."""

from __future__ import annotations

import re
from pathlib import Path

import h11
import httptools
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import exeat
from exeat.wire.http1 import ESTABLISHED, encode_reply, parse_response_head
from tests.support.examples import examples

STATUSES = [400, 403, 405, 407, 408, 413, 414, 415, 417, 421, 431, 502, 503, 504]
# RFC 9209 section 2.1 and RFC 8941 section 3.3.3: one item, two parameters, a string that is closed where it should.
PROXY_STATUS = re.compile(rb'exeat; error=([a-z_]++); details="((?:[ !#-\[\]-~]|\\["\\])*+)"')
any_text = st.text(st.characters(codec=None, exclude_categories=()), max_size=60)
nasty_text = st.lists(
    st.sampled_from(['"', "\\", "\r\n", "\n", "\0", "; error=x", "\x1b[2J", "\u2028", "é", "\ud800", "a"])
)
sentences = any_text | nasty_text.map("".join)


class Collected:
    """What httptools saw."""

    def __init__(self) -> None:
        self.headers: list[tuple[bytes, bytes]] = []
        self.body = b""
        self.complete = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.complete += 1


def read_with_h11(reply: bytes, method: str) -> tuple[h11.Response, bytes, bytes]:
    """The head, the body, and what is left over."""
    reader = h11.Connection(h11.CLIENT)
    reader.send(h11.Request(method=method, target="/", headers=[("Host", "a")]))
    reader.send(h11.EndOfMessage())
    reader.receive_data(reply)
    head = reader.next_event()
    assert isinstance(head, h11.Response)
    body = b""
    while isinstance(read := reader.next_event(), h11.Data):
        body += read.data
    assert isinstance(read, h11.EndOfMessage)
    return head, body, reader.trailing_data[0]


def printable(sentence: str) -> bytes:
    return re.sub(r"[^ -~]", "?", sentence).encode("ascii")


def check_reply(status: int, sentence: str, *, close: bool, body: bool) -> dict[bytes, bytes]:
    """One whole message for both readers, with the sentence in its two places and nowhere else."""
    reply = encode_reply(status, sentence, error="http_request_denied", close=close, body=body)
    head, read_body, left = read_with_h11(reply, "GET" if body else "HEAD")
    assert left == b""
    assert head.status_code == status
    assert head.reason
    assert read_body == (b"exeat: " + printable(sentence) + b"\n" if body else b"")
    names = [name for name, _ in head.headers]
    assert len(names) == len(set(names))
    headers = dict(head.headers)

    quoted = PROXY_STATUS.fullmatch(headers[b"proxy-status"])
    assert quoted is not None
    assert re.sub(rb"\\(.)", rb"\1", quoted[2]) == printable(sentence)
    assert quoted[1] == b"http_request_denied"
    assert headers[b"content-type"] == b"text/plain; charset=utf-8"
    assert headers[b"x-content-type-options"] == b"nosniff"
    assert headers[b"connection"] == (b"close" if close else b"keep-alive")
    assert int(headers[b"content-length"]) == len(b"exeat: \n") + len(printable(sentence))

    collected = Collected()
    parser = httptools.HttpResponseParser(collected)
    parser.feed_data(reply)
    assert parser.get_status_code() == status
    assert {name.lower(): value for name, value in collected.headers} == headers
    assert collected.body == read_body
    assert collected.complete == (1 if body else 0)  # httptools cannot be told that it was a HEAD

    # An exeat in front of an exeat reads it too.
    assert parse_response_head(reply[: reply.index(b"\r\n\r\n") + 4]).status == status
    return headers


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("close", [True, False])
@pytest.mark.parametrize("body", [True, False])
def test_every_reply_is_one_valid_message_that_names_exeat(status: int, close: bool, body: bool) -> None:
    """A client can tell our refusal from the server's, with any status and for HEAD too."""
    headers = check_reply(status, 'evil.test:80 is "not" allowed', close=close, body=body)
    assert (b"proxy-authenticate" in headers) is (status == 407)
    assert (b"allow" in headers) is (status == 405)


def test_407_says_how_and_405_says_what() -> None:
    """RFC 9110 sections 15.5.8 and 15.5.6 demand these fields."""
    assert check_reply(407, "who?", close=True, body=True)[b"proxy-authenticate"] == b'Basic realm="exeat"'
    allowed = check_reply(405, "no", close=True, body=True)[b"allow"].split(b", ")
    assert b"TRACE" not in allowed
    assert {b"GET", b"HEAD", b"POST", b"CONNECT"} <= set(allowed)


@given(sentence=sentences, status=st.sampled_from(STATUSES), close=st.booleans(), body=st.booleans())
@example(sentence='x"\r\nSet-Cookie: a=b\r\n\r\n<script>', status=403, close=True, body=True)
@example(sentence="\\", status=400, close=True, body=True)
@example(sentence='\\"; error=x; y="', status=400, close=True, body=True)
@example(sentence="", status=400, close=False, body=True)
@settings(max_examples=examples(200), deadline=None)
def test_no_text_in_the_sentence_breaks_out(sentence: str, status: int, close: bool, body: bool) -> None:
    """J3: quotes, backslashes, line ends, controls and surrogates stay inside the string and the body."""
    check_reply(status, sentence, close=close, body=body)


def test_the_answer_to_connect_is_a_bare_200() -> None:
    """C3: no length and no body, so the tunnel begins right behind it."""
    reader = h11.Connection(h11.CLIENT)
    reader.send(h11.Request(method="CONNECT", target="good.test:443", headers=[("Host", "good.test:443")]))
    reader.send(h11.EndOfMessage())
    reader.receive_data(ESTABLISHED + b"\x16\x03")
    read = reader.next_event()
    assert isinstance(read, h11.Response)
    assert read.status_code == 200
    assert list(read.headers) == []
    assert reader.next_event() is h11.PAUSED
    assert reader.trailing_data[0] == b"\x16\x03"


def test_every_status_that_the_source_names_can_be_answered() -> None:
    """A refusal with a status that encode_reply does not know would end in a traceback instead of an answer."""
    named = re.compile(r"(?:status=|Refusal\(\s*)([0-9]{3})\b")
    here = Path(exeat.__file__).parent
    sources = (path for path in here.rglob("*.py") if here / "ui" not in path.parents)  # which has answers of its own
    found = {int(match[1]) for path in sources for match in named.finditer(path.read_text())}
    assert found <= set(STATUSES)
    assert {400, 403, 407, 431, 502} <= found | {400}
