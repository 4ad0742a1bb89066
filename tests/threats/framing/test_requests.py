"""Requests that are refused whichever way they come: as a proxy's client sends them, in tunnels, inside TLS."""

from __future__ import annotations

import pytest

from tests.support.gateways.framing import post
from tests.support.gateways.threats import (
    AS_PROXY,
    IN_TLS,
    IN_TUNNELS,
    WAYS,
    RequestThreat,
    StartAt,
    Trial,
    Way,
    at_every_door,
)

GET_GOOD = "GET http://good.test:{port}/ HTTP/1.1\r\n"
TARGET_AND_HOST = {
    "Host names another": "GET http://good.test:{port}/ HTTP/1.1\r\nHost: evil.test:{port}\r\n\r\n",
    "Host names another port": "GET http://good.test:{port}/ HTTP/1.1\r\nHost: good.test:1\r\n\r\n",
    "Host has no port": "GET http://good.test:{port}/ HTTP/1.1\r\nHost: good.test\r\n\r\n",
    "two Hosts, good last": f"{GET_GOOD}Host: evil.test\r\nHost: good.test:{{port}}\r\n\r\n",
    "two Hosts, good first": f"{GET_GOOD}Host: good.test:{{port}}\r\nHost: evil.test\r\n\r\n",
    "two equal Hosts": f"{GET_GOOD}Host: good.test:{{port}}\r\nhost: good.test:{{port}}\r\n\r\n",
    "a list of hosts": "GET http://good.test:{port}/ HTTP/1.1\r\nHost: good.test:{port}, evil.test\r\n\r\n",
    "no Host": "GET http://good.test:{port}/ HTTP/1.1\r\nX: y\r\n\r\n",
    "empty Host": "GET http://good.test:{port}/ HTTP/1.1\r\nHost:\r\n\r\n",
    "space before the colon": "GET http://good.test:{port}/ HTTP/1.1\r\nHost : good.test:{port}\r\n\r\n",
    "folded Host": "GET http://good.test:{port}/ HTTP/1.1\r\nHost:\r\n good.test:{port}\r\n\r\n",
    "Host in another case of name": "GET http://good.test:{port}/ HTTP/1.1\r\nhOsT: evil.test\r\n\r\n",
    "origin form": "GET / HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n",
    "origin form with two slashes": "GET //good.test:{port}/ HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n",
    "CONNECT with another Host": "CONNECT good.test:{port} HTTP/1.1\r\nHost: evil.test:{port}\r\n\r\n",
    "CONNECT with two Hosts": "CONNECT good.test:{port} HTTP/1.1\r\nHost: good.test\r\nHost: evil.test\r\n\r\n",
}
ANOTHER_HOST = [
    f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"
    for host in ("evil.test:{port}", "a.wild.test:{port}", "good.test:1", "127.0.0.1:{port}")
]
UNCLEAR_HOST = [
    "GET / HTTP/1.1\r\nHost: good.test:{port}\r\nHost: evil.test\r\n\r\n",
    "GET / HTTP/1.1\r\n\r\n",
    "GET http://evil.test:{port}/ HTTP/1.1\r\nHost: evil.test:{port}\r\n\r\n",
    "GET http://evil.test:{port}/ HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n",
    "CONNECT evil.test:{port} HTTP/1.1\r\nHost: evil.test:{port}\r\n\r\n",
]
FRAMING = {
    "length and chunked": post("Content-Length: 5", "Transfer-Encoding: chunked", body="0\r\n\r\n"),
    "chunked and length": post("Transfer-Encoding: chunked", "Content-Length: 5", body="0\r\n\r\n"),
    "two lengths": post("Content-Length: 5", "Content-Length: 6", body="hello"),
    "two equal lengths": post("Content-Length: 5", "Content-Length: 5", body="hello"),
    "a list of lengths": post("Content-Length: 5, 5", body="hello"),
    "space before the colon": post("Transfer-Encoding : chunked", body="0\r\n\r\n"),
    "tab before the colon": post("Transfer-Encoding\t: chunked", body="0\r\n\r\n"),
    "vertical tab": post("Transfer-Encoding: \x0bchunked", body="0\r\n\r\n"),
    "form feed behind": post("Transfer-Encoding: chunked\x0c", body="0\r\n\r\n"),
    "NUL behind": post("Transfer-Encoding: chunked\0", body="0\r\n\r\n"),
    "chunked, x": post("Transfer-Encoding: chunked, x", body="0\r\n\r\n"),
    "x, chunked": post("Transfer-Encoding: x, chunked", body="0\r\n\r\n"),
    "gzip, chunked": post("Transfer-Encoding: gzip, chunked", body="0\r\n\r\n"),
    "chunked twice in one": post("Transfer-Encoding: chunked, chunked", body="0\r\n\r\n"),
    "chunked twice": post("Transfer-Encoding: chunked", "Transfer-Encoding: chunked", body="0\r\n\r\n"),
    "chunked and identity": post("Transfer-Encoding: chunked", "Transfer-Encoding: identity", body="0\r\n\r\n"),
    "identity": post("Transfer-Encoding: identity"),
    "xchunked": post("Transfer-Encoding: xchunked", body="0\r\n\r\n"),
    "quoted": post('Transfer-Encoding: "chunked"', body="0\r\n\r\n"),
    "empty": post("Transfer-Encoding:", body="0\r\n\r\n"),
    "with a parameter": post("Transfer-Encoding: chunked;q=1", body="0\r\n\r\n"),
    "chunked in HTTP/1.0": post("Transfer-Encoding: chunked", body="0\r\n\r\n", version="1.0"),
    "name with a control byte": post("\x0bTransfer-Encoding: chunked", body="0\r\n\r\n"),
    "name with NUL": post("Transfer-Encoding\0: chunked", body="0\r\n\r\n"),
    "name in brackets": post("(Transfer-Encoding): chunked", body="0\r\n\r\n"),
    "hidden behind a bare CR": post("X: y\rTransfer-Encoding: chunked", body="0\r\n\r\n"),
    "hidden behind a bare LF": post("X: y\nTransfer-Encoding: chunked", body="0\r\n\r\n"),
    "a line without a colon": post("Content-Length", body="0\r\n\r\n"),
    "an empty name": post(": 5", body="0\r\n\r\n"),
    "CONNECT with a length": "CONNECT good.test:{port} HTTP/1.1\r\nHost: good.test\r\nContent-Length: 5\r\n\r\nhello",
    "CONNECT with chunks": "CONNECT good.test:{port} HTTP/1.1\r\nHost: good.test\r\nTransfer-Encoding: chunked\r\n\r\n",
}
LENIENT = {
    "+5": post("Content-Length: +5", body="hello"),
    "-5": post("Content-Length: -5", body="hello"),
    "0x5": post("Content-Length: 0x5", body="hello"),
    "1_0": post("Content-Length: 1_0", body="hellohello"),
    "Arabic digit": post("Content-Length: \xd9\xa5", body="hello"),
    "5.0": post("Content-Length: 5.0", body="hello"),
    "5 5": post("Content-Length: 5 5", body="hello"),
    "empty length": post("Content-Length:", body="hello"),
    "2 to the 64th and five": post("Content-Length: 18446744073709551621", body="hello"),
    "2 to the 63rd": post("Content-Length: 9223372036854775808", body="hello"),
    "vertical tab": post("Content-Length: \x0b5", body="hello"),
    "obs-fold": post("X: a\r\n b"),
    "obs-fold with a tab": post("Content-Length:\r\n\t5", body="hello"),
    "fold before the first field": "GET http://good.test:{port}/ HTTP/1.1\r\n X: y\r\nHost: good.test:{port}\r\n\r\n",
    "bare LF after the request line": "GET http://good.test:{port}/ HTTP/1.1\nHost: good.test:{port}\r\n\r\n",
    "bare LF everywhere": "GET http://good.test:{port}/ HTTP/1.1\nHost: good.test:{port}\n\n",
    "bare LF at the end": "GET http://good.test:{port}/ HTTP/1.1\r\nHost: good.test:{port}\r\n\n",
    "bare CR in the request line": "GET http://good.test:{port}/\rX HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n",
    "bare CR between fields": "GET http://good.test:{port}/ HTTP/1.1\r\nHost: good.test:{port}\rX: y\r\n\r\n",
    "NUL in a value": post("X: a\0b"),
    "control byte in a value": post("X: a\x01b"),
    "two spaces": "GET  http://good.test:{port}/ HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n",
    "tab for a space": "GET\thttp://good.test:{port}/ HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n",
    "space at the end": "GET http://good.test:{port}/ HTTP/1.1 \r\nHost: good.test:{port}\r\n\r\n",
    "space in the target": "GET http://good.test:{port}/a b HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n",
    "fragment in the target": "GET http://good.test:{port}/#a HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n",
    "space before the method": " GET http://good.test:{port}/ HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n",
    "bare LF before the method": "\nGET http://good.test:{port}/ HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n",
    "bare LF behind an empty line": "\r\n\nGET http://good.test:{port}/ HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n",
    "bare CR behind an empty line": "\r\n\rGET http://good.test:{port}/ HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n",
}
DROPPED = [
    post(f"Connection: {field}", "Authorization: Bearer x")
    for field in (
        *("authorization", "Authorization", "close, AUTHORIZATION", "cookie"),
        *("host", "content-length", "transfer-encoding", "expect"),
    )
]
UNDER_PUB = ["good.test:{port} private paths=/pub/**"]
PATHS = [
    f"GET http://good.test:{{port}}{path} HTTP/1.1\r\nHost: good.test:{{port}}\r\n\r\n"
    for path in (
        *("/pub/..%2fsecret", "/pub/..%5csecret", "/pub\\..\\secret", "/pub/%00"),
        *("/pub/%", "/pub/%zz", "/pub/..;/secret"),
    )
]
OTHER = (
    "GET ftp://good.test:{port}/ HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n",
    "GET urn:good.test HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n",
    "GET file:///etc/passwd HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n",
    "GET gopher://good.test:{port}/ HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n",
    "GET ws://good.test:{port}/ HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n",
    "GET https://good.test:{port}/ HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n",
    "GET http:/good.test:{port}/ HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n",
    "GET http:good.test:{port}/ HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n",
    "GET http:///good.test:{port}/ HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n",
    "GET http:\\\\good.test:{port}/ HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n",
    "GET good.test:{port} HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n",
    "GET * HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n",
    "CONNECT http://good.test:{port}/ HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n",
    "CONNECT /good.test:{port} HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n",
    "CONNECT good.test HTTP/1.1\r\nHost: good.test\r\n\r\n",
    "CONNECT good.test:{port}/ HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n",
    "GET http://good.test:{port}/\r\n\r\n",
    "GET http://good.test:{port}/ HTTP/0.9\r\n\r\n",
    "GET http://good.test:{port}/ HTTP/1.2\r\nHost: good.test:{port}\r\n\r\n",
    "GET http://good.test:{port}/ HTTP/2.0\r\nHost: good.test:{port}\r\n\r\n",
    "GET http://good.test:{port}/ HTTP/1.10\r\nHost: good.test:{port}\r\n\r\n",
    "GET http://good.test:{port}/ HTTP/1\r\nHost: good.test:{port}\r\n\r\n",
    "GET http://good.test:{port}/ http/1.1\r\nHost: good.test:{port}\r\n\r\n",
    "GET http://good.test:{port}/ ICE/1.0\r\nHost: good.test:{port}\r\n\r\n",
    "get http://good.test:{port}/ HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n",
)
# In a tunnel to a port that a rule names these are another protocol.
HARDLY_HTTP = (
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "G\u00c9T http://good.test:{port}/ HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n",
)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_request_that_is_served_is_noticed(way: Way, start_at: StartAt) -> None:
    """The control of the threats below: a request in order does not pass for a refused one."""
    with pytest.raises(AssertionError):
        RequestThreat("T-B2", "none", [post("Content-Length: 0")]).check(way, start_at)


@at_every_door(
    RequestThreat("T-B1", "target and Host differ", TARGET_AND_HOST.values(), ways=AS_PROXY),
    RequestThreat("T-B1", "another host inside", ANOTHER_HOST, 421, ways=(*IN_TUNNELS, *IN_TLS)),
    RequestThreat("T-B1", "an unclear host inside", UNCLEAR_HOST, ways=(*IN_TUNNELS, *IN_TLS)),
    RequestThreat("T-B2", "unclear framing", FRAMING.values()),
    RequestThreat("T-B3", "lenient numbers and line ends", LENIENT.values()),
    RequestThreat("T-B6", "an end-to-end field to be dropped", DROPPED),
    RequestThreat("T-B6", "TRACE", [post(method="TRACE")], 405),
    RequestThreat("T-B6", "other spellings of TRACE", [post(method="TRACK"), post(method="trace")]),
    RequestThreat("T-B7", "paths that servers read differently", PATHS, rules=UNDER_PUB, ways=(*AS_PROXY, *IN_TLS)),
    RequestThreat("T-B8", "other schemes and versions", OTHER),
    RequestThreat("T-B8", "hardly HTTP", HARDLY_HTTP, ways=(*AS_PROXY, *IN_TLS)),
)
def test_request(trial: Trial, start_at: StartAt) -> None:
    trial.check(start_at)
