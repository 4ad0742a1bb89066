"""What is put in for a placeholder, and how often; and placeholders that are passed as the useless strings they are."""

from __future__ import annotations

import json

import pytest

from tests.support.clients.talk import read_reply
from tests.support.gateways.intercepted import StartIntercepted
from tests.support.origins.raw import receive_body
from tests.threats.secrets.destinations import ALL, REAL, SECRETS, start

# Passed as the useless string it is


@pytest.mark.threat("T-H2")
def test_it_may_be_passed_where_so_configured(start_intercepted: StartIntercepted) -> None:
    """`on_wrong_host: pass`, in the head, in a body, over plain HTTP and in a tunnel; never the value."""
    secrets = {"KEY": {**SECRETS["KEY"], "on_wrong_host": "pass"}}
    scene = start(start_intercepted, secrets=secrets)
    key = scene.placeholder()
    request = b"POST %b HTTP/1.1\r\nHost: other.test\r\nX-Key: %b\r\nContent-Length: %d\r\n\r\n%b"
    with scene.open("other.test") as conn:
        conn.sendall(request % (b"/", key, len(key), key))
        assert read_reply(conn).status == 200
    with scene.gate.connect() as conn:
        conn.sendall(request % (b"http://other.test/", key, len(key), key))
        assert read_reply(conn).status == 200
    for sent in (scene.origin.everything, scene.plain.everything):
        assert sent.count(key) == 2
        assert REAL not in sent
    assert ("deny", "secret-to-wrong-host") not in scene.decided()


# H6


@pytest.mark.threat("T-H6")
def test_what_was_put_in_is_not_searched_again(start_intercepted: StartIntercepted) -> None:
    """A value that holds another secret's placeholder, as a renewed one might, is put in as it is."""
    hosts = {"hosts": ["good.test private"]}
    scene = start_intercepted(
        secrets={
            "OUTER": {**hosts, "placeholder": "outer-stand-in"},
            "INNER": {**hosts, "placeholder": "inner-stand-in"},
        }
    )
    scene.secrets[0].renew(b"holds inner-stand-in inside")
    with scene.open() as conn:
        conn.sendall(b"GET / HTTP/1.1\r\nHost: good.test\r\nA: outer-stand-in\r\nB: inner-stand-in\r\n\r\n")
        assert read_reply(conn).status == 200
    assert b"\r\nA: holds inner-stand-in inside\r\nB: %b\r\n" % REAL in scene.origin.everything


@pytest.mark.threat("T-H6")
@pytest.mark.parametrize("count", [1_000, 1_001])
@pytest.mark.parametrize("where", ["body", "long body", "query"])
def test_copies_are_counted(where: str, count: int, start_intercepted: StartIntercepted) -> None:
    """A value of 64 KiB times a million would be an attack on us and on the server."""
    scene = start(start_intercepted)
    key = b"k" + scene.placeholder()
    if where == "query":
        count //= 10  # more would be too large a head, which is the bound there
        request = b"GET /?%b HTTP/1.1\r\nHost: good.test\r\n\r\n" % (key * count)
        status = 200
    else:
        body = key * count + (bytes(1_100_000) if where == "long body" else b"")
        request = b"POST / HTTP/1.1\r\nHost: good.test\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        status = 200 if count == 1_000 else 413
    with scene.open() as conn:
        try:
            conn.sendall(request)
        except OSError:
            pass  # refused before it was all sent
        assert read_reply(conn).status == status
    if status == 413:
        assert scene.origin.everything.count(REAL) <= 1_000


@pytest.mark.threat("T-H6")
def test_another_runs_placeholder_is_nothing_here(start_intercepted: StartIntercepted) -> None:
    """Random for each run: another's is passed as the useless string it is, and never becomes a value."""
    one, other = start(start_intercepted), start(start_intercepted)
    one.dials.ports[443] = one.origin.port
    assert one.placeholder() != other.placeholder()
    with one.open() as conn:
        conn.sendall(b"GET / HTTP/1.1\r\nHost: good.test\r\nX-Key: %b\r\n\r\n" % other.placeholder())
        assert read_reply(conn).status == 200
    assert b"X-Key: %b\r\n" % other.placeholder() in one.origin.everything
    assert REAL not in one.origin.everything


# H3


@pytest.mark.threat("T-H3")
def test_a_value_is_escaped_for_where_it_stands(start_intercepted: StartIntercepted) -> None:
    """Quotes in JSON, ampersands in forms and queries, tags in XML; the length is that of what is sent."""
    value = 'a"b\\c&d=e<f>g\u00e9'
    scene = start_intercepted(
        secrets={"KEY": {"hosts": ["good.test private"], "value": value, "where": ALL}}, handler=receive_body
    )
    key = scene.placeholder()
    for content_type, body in (
        ("application/json", b'{"k":"%b"}' % key),
        ("application/x-www-form-urlencoded", b"x=1&k=%b" % key),
        ("application/xml", b"<k>%b</k>" % key),
        ("text/plain", key),
    ):
        with scene.open() as conn:
            conn.sendall(
                f"POST /?q={key.decode()} HTTP/1.1\r\nHost: good.test\r\nContent-Type: {content_type}\r\n"
                f"Content-Length: {len(body)}\r\n\r\n".encode()
                + body
            )
            assert read_reply(conn).status == 200
    sent = scene.origin.everything
    escaped = b"a%22b%5Cc%26d%3De%3Cf%3Eg%C3%A9"
    assert sent.count(b"POST /?q=%b HTTP/1.1\r\n" % escaped) == 4
    bodies = [part.partition(b"POST ")[0] for part in sent.split(b"\r\n\r\n")[1:]]
    assert json.loads(bodies[0]) == {"k": value}
    assert bodies[1] == b"x=1&k=" + escaped
    assert bodies[2].decode() == "<k>a&quot;b\\c&amp;d=e&lt;f&gt;g\u00e9</k>"
    assert bodies[3] == value.encode()
