"""The gateway of a run, in its own process."""
