"""A machine that was saved while it waited for a command. A later run continues it."""
