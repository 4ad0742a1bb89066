"""A tunnel whose two connections are gone while someone still decides about what its client has said."""

from __future__ import annotations

from typing import Any, cast

import pytest

from exeat.gateway.flow.channel import Channel
from exeat.gateway.flow.relay import Tunnel
from exeat.gateway.limits import Budget
from tests.support.gateways.by_hand import Turns, Wire


@pytest.mark.threat("T-J5")
@pytest.mark.parametrize("how", ["first", "all"])
def test_last_words_that_are_judged_when_both_sides_are_gone(how: str) -> None:
    """A second hello, the last bytes of which come together with a reset. Over the budget, it was a fault of ours, and
    the end of the tunnel was not on record."""
    turns = Turns()
    client, server = (Channel(cast("Any", turns)) for _ in range(2))
    for each in (client, server):
        Wire(each)
    try:
        tunnel = Tunnel(client, server, Budget(3))
        client.data_received(b"hello")
        for channel in (server, client):
            channel.connection_lost(None)
        assert tunnel.done.done()
        if how == "first":
            tunnel.send_up(5)
        else:
            tunnel.open_up()
        assert server.sent == 0
    finally:
        turns.close()
