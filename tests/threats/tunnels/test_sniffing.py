"""On a port that a rule names any protocol passes; what a server might read as HTTP is judged as HTTP, or refused."""

from __future__ import annotations

import socket

import pytest

from exeat.gateway.limits import Limits
from tests.support.clients.answers import read_to_end
from tests.support.clients.talk import read_reply
from tests.support.fixtures.gateways import StartScene
from tests.support.gateways.doors import TUNNELS, Opener
from tests.support.gateways.scene import wait_until
from tests.support.origins.raw import keep_silent

pytestmark = pytest.mark.threat("T-L6")

every_tunnel = pytest.mark.parametrize("open_tunnel", TUNNELS, ids=["connect", "socks", "redirect"])

EVIL = b"Host: evil.test\r\n\r\n"
ALMOST_HTTP = {
    "a method of 33 letters": b"A" * 33 + b" / HTTP/1.1\r\n" + EVIL,
    "a method of 9,000 letters": b"A" * 9_000 + b" / HTTP/1.1\r\n" + EVIL,
    "5,000 empty lines": b"\r\n" * 5_000 + b"GET / HTTP/1.1\r\n" + EVIL,
    "10,000 line feeds": b"\n" * 10_000 + b"GET / HTTP/1.1\r\n" + EVIL,
    "a request line over 8 KB": b"GET /" + b"a" * 9_000 + b" HTTP/1.1\r\n" + EVIL,
    "a request line over 64 KB": b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n" + EVIL,
    "a long target of an unknown method": b"FETCH /" + b"a" * 9_000 + b" HTTP/1.1\r\n" + EVIL,
    "blanks in front": b" \tGET / HTTP/1.1\r\n" + EVIL,
    "other blanks between": b"GET\x0b/\x0bHTTP/1.1\r\n" + EVIL,
    "a control in the target": b"GET /\x01 HTTP/1.1\r\n" + EVIL,
    "NUL in the target": b"GET /\0 HTTP/1.1\r\n" + EVIL,
    "small letters": b"get / http/1.1\r\n" + EVIL,
    "HTTP/0.9": b"GET http://evil.test/\r\n",
    "a version to come": b"GET / HTTP/3.0\r\n" + EVIL,
    "almost HTTP/2": b"PRI * HTTP/2.0\r\n" + EVIL,
    "absolute": b"GET http://evil.test/ HTTP/1.1\r\n" + EVIL,
}


@pytest.mark.parametrize("data", ALMOST_HTTP.values(), ids=ALMOST_HTTP.keys())
@every_tunnel
def test_what_could_be_http_is_refused_in_its_words(open_tunnel: Opener, data: bytes, start_scene: StartScene) -> None:
    """The server behind may serve more names than the one that is allowed, so it gets none of it."""
    scene = start_scene()
    with open_tunnel(scene, b"good.test", scene.port) as conn:
        try:
            conn.sendall(data)
        except ConnectionError:
            pass
        assert read_reply(conn).status in (400, 421, 431)
    wait_until(lambda: "deny" in [each["verdict"] for each in scene.gate.decisions()], "the refusal on record")
    scene.settle()
    assert scene.origin.received == 0, scene.origin.everything[:100]


@every_tunnel
def test_a_long_request_line_for_the_tunnels_host_passes(open_tunnel: Opener, start_scene: StartScene) -> None:
    """The control: as long as a head may be, and with an empty line in front."""
    scene = start_scene()
    host = b"Host: good.test:%d\r\n\r\n" % scene.port
    for data in (b"GET /" + b"a" * 9_000 + b" HTTP/1.1\r\n" + host, b"\r\nGET / HTTP/1.1\r\n" + host):
        with open_tunnel(scene, b"good.test", scene.port) as conn:
            conn.sendall(data)
            assert read_reply(conn).status == 200


OTHER = {
    "git": b"0032git-upload-pack /p.git\0host=good.test\0",
    "XMPP": b"<?xml version='1.0'?><stream:stream to='good.test' xmlns='jabber:client' version='1.0'>",
    "PostgreSQL": b"\0\0\0\x08\x04\xd2\x16\x2f",
    "Redis": b"*1\r\n$4\r\nPING\r\n",
    "memcached": b"get some-key\r\n",
    "SMTP": b"EHLO a b\r\n",
    "SSH": b"SSH-2.0-OpenSSH_9.6\r\n",
    "LDAP": b"0\x0c\x02\x01\x01\x60\x07\x02\x01\x03\x04\0\x80\0",
    "RTSP": b"OPTIONS rtsp://good.test/ RTSP/1.0\r\nCSeq: 1\r\n\r\n",
    "JSON": b'{"jsonrpc": "2.0", "method": "a", "id": 1}',
    "iperf": b"abcdefghijklmnopqrstuvwxyz0123456789\0",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
}


@pytest.mark.parametrize("data", OTHER.values(), ids=OTHER.keys())
@every_tunnel
def test_other_protocols_pass_at_once(open_tunnel: Opener, data: bytes, start_scene: StartScene) -> None:
    """A client that waits for an answer to these bytes must not wait for us to be sure."""
    scene = start_scene(handler=keep_silent)
    with open_tunnel(scene, b"good.test", scene.port) as conn:
        conn.sendall(data)
        wait_until(lambda: scene.origin.everything == data, "the first words")


@every_tunnel
def test_half_a_request_is_not_relayed_when_time_is_up(
    open_tunnel: Opener, start_scene: StartScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What may become a request and does not is never passed on: neither at the end of the stream nor of the time."""
    monkeypatch.setattr("exeat.gateway.sweeper._SWEEP_S", 0.05)
    limits = Limits(head_s=0.5, idle_s=0.5)
    scene = start_scene(handler=keep_silent, limits=limits)
    for beginning in (b"GE", b"ABC", b"\r\n\r\n", b"FETCH /a", b"GET /" + b"a" * 9_000):
        with open_tunnel(scene, b"good.test", scene.port) as conn:
            conn.sendall(beginning)
            conn.shutdown(socket.SHUT_WR)
            read_to_end(conn)
        with open_tunnel(scene, b"good.test", scene.port) as conn:
            conn.sendall(beginning)
            read_to_end(conn)
    assert scene.origin.received == 0


@every_tunnel
def test_utf8_in_a_request_target_arrives_percent_encoded(open_tunnel: Opener, start_scene: StartScene) -> None:
    """curl sends what was typed as it is. The server gets one meaning; bytes that are no UTF-8 have none."""
    scene = start_scene()
    host = b"Host: good.test:%d\r\n\r\n" % scene.port
    with open_tunnel(scene, b"good.test", scene.port) as conn:
        conn.sendall("GET /caf\u00e9?q=\u00fc HTTP/1.1\r\n".encode() + host)
        assert read_reply(conn).status == 200
        conn.sendall(b"GET /caf\xe9 HTTP/1.1\r\n" + host)
        reply = read_reply(conn)
        assert reply.status == 400
        assert b"percent-encode it" in reply.body
    assert scene.origin.everything.startswith(b"GET /caf%C3%A9?q=%C3%BC HTTP/1.1\r\n")
