"""Warm sandboxes, and their binding to a claim."""
