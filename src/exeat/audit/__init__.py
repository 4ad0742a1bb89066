"""The tamper-evident decision log: one line per decision, chained by hash, written before anything is dialled."""

from exeat.audit.events import EventStream
from exeat.audit.journal import Journal, open_journal
from exeat.audit.record import Record, encode_event

__all__ = ["EventStream", "Journal", "Record", "encode_event", "open_journal"]
