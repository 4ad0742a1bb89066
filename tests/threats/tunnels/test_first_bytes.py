"""What a tunnel to good.test begins with: in blind tunnels, on a port that a rule names, and in intercepted ones.

That another host in plain HTTP is refused there is in framing/test_requests.py.
"""

from __future__ import annotations

import pytest

from tests.support.clients.hello import client_hello, hello_message, records, server_name
from tests.support.gateways.threats import IN_TLS, IN_TUNNELS, StartAt, Trial, TunnelThreat, Way, at_every_door

GOOD = client_hello(b"good.test")
ANOTHER_NAME = [
    *(client_hello(name) for name in (b"evil.test", b"a.wild.test", None, b"127.0.0.1", b"*.com", b"a" * 300)),
]
ENTRIES = b"\0\0\x09good.test\0\0\x09evil.test"
HIDDEN = {
    "two server names": records(hello_message([(0, server_name(b"good.test")), (0, server_name(b"evil.test"))])),
    "two entries in one": records(hello_message([(0, len(ENTRIES).to_bytes(2) + ENTRIES)])),
    "an entry of another kind": records(hello_message([(0, b"\0\x0c\x01\0\x09good.test")])),
    "bytes behind the name": records(hello_message([(0, server_name(b"good.test") + b"x")])),
    "an empty name": client_hello(b""),
    "an empty extension": records(hello_message([(0, b"")])),
    "a name longer than its extension": records(hello_message([(0, b"\0\xff\0\0\xffgood.test")])),
    "a second message in the record": records(hello_message([(0, server_name(b"good.test"))]) * 2),
    "NUL behind the name": client_hello(b"good.test\0"),
    "NUL and more behind the name": client_hello(b"good.test\0.evil.test"),
    "another handshake message": records(b"\x02\0\0\x02hi"),
    "an empty record": b"\x16\x03\x01\x00\x00",
    "SSL 2": b"\x16\x02\x01\x00\x05hello",
    "an alert inside": client_hello(b"good.test")[:20] + b"\x15\x03\x01\0\x02",
}
NO_TLS = {
    "an SSH banner": b"SSH-2.0-OpenSSH_9.9\r\n",
    "noise": bytes(range(128, 256)),
    "SSL 2": b"\x80\x2e\x01\x00\x02" + bytes(41),
    "an alert": b"\x15\x03\x03\x00\x02\x01\x00",
    "plain HTTP": b"GET / HTTP/1.1\r\nHost: good.test\r\n\r\n",
}


@pytest.mark.parametrize("way", [*IN_TUNNELS, *IN_TLS], ids=str)
def test_bytes_that_pass_are_noticed(way: Way, start_at: StartAt) -> None:
    """The control of the threats below: a hello in order does not pass for a refused one."""
    with pytest.raises(AssertionError):
        TunnelThreat("T-C1", "none", [GOOD]).check(way, start_at)


@at_every_door(
    TunnelThreat("T-C1", "another server name", ANOTHER_NAME),
    TunnelThreat("T-C1", "hellos that can be read two ways", HIDDEN.values()),
    TunnelThreat("T-C2", "half a hello", [GOOD[:size] for size in (1, 4, 5, 6, len(GOOD) - 1)]),
    TunnelThreat("T-C2", "a hello of 60 KB", [client_hello(b"good.test", more=[(21, bytes(60_000))])]),
    TunnelThreat("T-C2", "no TLS", NO_TLS.values(), ways=IN_TLS),
)
def test_first_bytes(trial: Trial, start_at: StartAt) -> None:
    trial.check(start_at)
