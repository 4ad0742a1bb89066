"""When a guest's run is over: not before the caller has all that was written, unless the guest is what is slow."""

from __future__ import annotations

import os
import select
from typing import cast

from exeat.jail.vm.protocol import Exited
from exeat.jail.vm.pump import Pump
from exeat.jail.vm.supervisor import Guest, Supervisor

_PIECE = 4096
_NEVER = float("inf")
_LONG_AGO = 0.0


def _with_output(written: int) -> tuple[Supervisor, Pump, int]:
    """Long after a command ended that wrote so much: the supervisor, the stream, and where the guest writes to it."""
    source, guest_writes = os.pipe()
    _, sink = os.pipe()
    nothing, _ = os.pipe()
    supervisor = Supervisor(cast(Guest, None), lambda _: None)
    pump = Pump(source, sink)
    supervisor._outputs = {"out": pump, "err": Pump(nothing, sink)}
    supervisor._boot_ends, supervisor._time_ends = _NEVER, None
    supervisor._exited = Exited(0, written, 0)
    supervisor._ends_at = _LONG_AGO
    return supervisor, pump, guest_writes


def test_a_caller_who_takes_his_time_gets_everything() -> None:
    supervisor, pump, guest_writes = _with_output(2 * _PIECE)
    for is_last in (False, True):
        os.write(guest_writes, bytes(_PIECE))
        pump.move({pump.source: select.POLLIN})
        supervisor._see_to_time()
        assert not supervisor._is_over()
        pump.move({pump.sink: select.POLLOUT})
        assert supervisor._is_over() is is_last


def test_a_guest_that_does_not_send_what_it_claims_is_not_waited_for() -> None:
    supervisor, _, _ = _with_output(2 * _PIECE)
    supervisor._see_to_time()
    assert supervisor._is_over()
