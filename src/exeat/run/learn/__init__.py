"""A policy from what a command reached."""
