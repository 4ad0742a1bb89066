"""A machine that was saved as it waited for a command, and is continued by a later run."""
