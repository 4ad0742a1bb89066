"""The tamper-evident decision log: one line per decision, chained by hash, written before anything is dialled."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from exeat.audit.batch import EventStream
    from exeat.audit.journal import Journal, open_journal
    from exeat.audit.record import Record, encode_event
    from exeat.audit.rotation import Rotation

_HOMES = {
    "EventStream": "exeat.audit.batch",
    "Journal": "exeat.audit.journal",
    "Record": "exeat.audit.record",
    "Rotation": "exeat.audit.rotation",
    "encode_event": "exeat.audit.record",
    "open_journal": "exeat.audit.journal",
}

__all__ = ["EventStream", "Journal", "Record", "Rotation", "encode_event", "open_journal"]


def __getattr__(name: str) -> object:
    """Load on first use: whoever only reads a log must not wait for asyncio, which is 70 ms."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 - loaded only when something is asked for

    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value
