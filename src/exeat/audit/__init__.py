"""The tamper-evident decision log: one line per decision, chained by hash, written before anything is dialled."""
