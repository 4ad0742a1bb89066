"""Containers of real engines."""
