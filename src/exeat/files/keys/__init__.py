"""Files hidden from a command."""
