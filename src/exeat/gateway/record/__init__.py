"""Records and counters."""
