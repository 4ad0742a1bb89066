"""The forms of a value: those that usual encoders write are found, and no cache of the whole process holds any."""

from __future__ import annotations

import socket

import pytest

from exeat.secrets.stream.forms import reflected_forms
from exeat.secrets.vault import Vault
from tests.support.clients.talk import read_reply
from tests.support.gateways.intercepted import WITH_KEY, StartIntercepted, for_good
from tests.support.origins.raw import RawOrigin, read_head
from tests.support.secrets.samples import make_secret

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


@pytest.mark.threat("T-H1")
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


KEY = b"value-of-one-gateway-only-0123456789"
HEX = KEY.hex().encode()


def form_in_a_vault() -> bytes:
    """The very object with which a vault of its own looks for the value's hex form."""
    secret = make_secret(value=KEY)
    vault = Vault([secret])
    vault.note_injected(secret)
    redaction = vault.redaction()
    assert redaction is not None
    assert redaction.clean(HEX) == secret.placeholder, "the control: it is looked for"
    return next(form for form in redaction.table.pairs if form == HEX)


@pytest.mark.threat("T-H6")
def test_two_vaults_share_no_form_of_a_value() -> None:
    assert form_in_a_vault() is not form_in_a_vault()


@pytest.mark.threat("T-H6")
def test_the_forms_of_a_value_are_made_once_in_a_vault(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take milliseconds for a long value, and another value may be given out at any time."""
    made: list[bytes] = []

    def make(value: bytes) -> tuple[bytes, ...]:
        made.append(value)
        return reflected_forms(value)

    monkeypatch.setattr("exeat.secrets.response.redaction.reflected_forms", make)
    first, second = make_secret(value=KEY), make_secret("OTHER", value=b"another-value-0123456789")
    vault = Vault([first, second])
    vault.note_injected(first)
    vault.redaction()
    vault.note_injected(second)
    vault.redaction()
    second.renew(b"a-third-value-0123456789")
    vault.redaction()
    assert made == [KEY, b"another-value-0123456789", b"a-third-value-0123456789"]
