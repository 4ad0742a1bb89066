"""Targets outside a jail, opened for the time of an attack."""
