"""The fixture that starts gateways which look into TLS: `pytest_plugins = ["tests.support.intercepted_fixtures"]`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from exeat.gateway.tls.interception import Intercept
from tests.conftest import StartGate
from tests.support.intercepted import Intercepted, Routes, StartIntercepted
from tests.support.raw_origin import RawHandler, RawOrigin
from tests.support.redirected import why_not
from tests.support.tls_peers import TlsOrigin


@pytest.fixture
def start_intercepted(start_gate: StartGate, monkeypatch: pytest.MonkeyPatch) -> Iterator[StartIntercepted]:
    """Start gateways. `good.test` is looked into, for its rule has methods, unless other rules are given.

    `handler` is of the server that speaks TLS, `secrets` are as in a file of them.
    """
    started: list[Intercepted] = []
    servers: list[RawOrigin] = []
    routes = Routes()
    monkeypatch.setattr("exeat.gateway.gates.admission.dial", routes)

    def start(
        allow: Sequence[str] = ("good.test private methods=GET|HEAD|POST|PUT|OPTIONS",),
        *,
        deny: Sequence[str] = (),
        handler: RawHandler | None = None,
        plain_handler: RawHandler | None = None,
        secrets: dict[str, dict[str, Any]] | None = None,
        mode: Intercept = Intercept.NEEDED,
        context: Any = None,
        **settings: Any,
    ) -> Intercepted:
        origin, plain = TlsOrigin(handler, context), RawOrigin(plain_handler)
        servers.extend((origin, plain))
        gate = start_gate(redirected=not why_not(), **settings)
        made = Intercepted(gate, origin, plain, routes, allow=allow, deny=deny, secrets=secrets, mode=mode)
        started.append(made)
        return made

    yield start
    for each in started:
        each.settle()
    for server in servers:
        server.close()
