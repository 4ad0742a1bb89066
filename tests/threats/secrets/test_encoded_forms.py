"""What the encoders of the usual frameworks make of a value in base64, the most usual shape of a key."""

from __future__ import annotations

import socket

import pytest

from tests.support.gateways.doors import read_reply
from tests.support.gateways.intercepted import WITH_KEY, StartIntercepted, for_good
from tests.support.origins.raw import RawOrigin, read_head

pytestmark = pytest.mark.threat("T-H1")

VALUE = "c2Vj/mV0L+ZhbHVlLTAxMjM0NTY3ODk="


def swap(**table: str) -> str:
    names = {"slash": "/", "plus": "+", "equals": "="}
    text = VALUE
    for name, written in table.items():
        text = text.replace(names[name], written)
    return text


FORMS = {
    "as it is": VALUE,
    "JSON by Gson": swap(equals="\\u003d"),
    "JSON by Gson, slashes escaped": swap(equals="\\u003d", slash="\\/"),
    "HTML by Handlebars": swap(equals="&#x3D;"),
    "HTML by mustache.js": swap(equals="&#x3D;", slash="&#x2F;"),
    "HTML by OWASP's encoder": swap(slash="&#x2f;"),
    "HTML by Go, not in quotes": swap(equals="&#61;", plus="&#43;"),
    "query by Spring": swap(equals="%3D"),
    "path segment by Go or Guava": swap(slash="%2F"),
    "JavaScript's escape": swap(equals="%3D"),
    "a plus alone": swap(plus="%2B"),
    "path by Python": swap(plus="%2B", equals="%3D"),
    "encodeURIComponent": swap(plus="%2B", equals="%3D", slash="%2F"),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_a_value_in_base64_is_found_however_it_was_escaped(form: str, start_intercepted: StartIntercepted) -> None:
    body = b'{"got": "%b"}' % form.encode()

    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        while read_head(conn, origin, raw):
            conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

    scene = start_intercepted(secrets=for_good(value=VALUE), handler=handle)
    with scene.open() as conn:
        conn.sendall(WITH_KEY % scene.placeholder())
        reply = read_reply(conn)
    assert reply.status == 200
    assert reply.body.startswith(b'{"got": "')
    assert b"ZhbHVlLTAxMjM0NTY3ODk" not in reply.body
