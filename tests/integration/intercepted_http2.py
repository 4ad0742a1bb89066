"""HTTP/2 inside TLS that is looked into, with secrets: what its tests begin with."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.clients.http2 import Http2Client, Http2Server, refuse_without_h2
from tests.support.gateways.intercepted import DOORS, VALUE, Intercepted, StartIntercepted
from tests.support.origins import tls

REAL = VALUE.encode()
MB = 1_000_000
ALL = ["headers", "basic", "query", "path", "body"]
SECRETS: dict[str, dict[str, Any]] = {"KEY": {"hosts": ["good.test private"], "where": ALL}}
every_door = pytest.mark.parametrize("door", DOORS)
# What servers offer; the last one refuses who does not offer HTTP/2.
OFFERS = {"http/1.1": ["http/1.1"], "h2 and http/1.1": ["h2", "http/1.1"], "h2 only": ["h2"], "nothing": []}


def start(
    start_intercepted: StartIntercepted, server: Http2Server, offer: str = "h2 and http/1.1", **settings: Any
) -> Intercepted:
    scene = start_intercepted(handler=server, context=tls.server_context(alpn=OFFERS[offer]), **settings)
    if offer == "h2 only":
        scene.origin.before = refuse_without_h2
    return scene


def open_client(scene: Intercepted, host: str = "good.test", **options: Any) -> Http2Client:
    return Http2Client(scene.open(host, alpn=("h2",), **options))
