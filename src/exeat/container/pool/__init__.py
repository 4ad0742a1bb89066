"""Warm sandboxes, and what makes one somebody's for a while."""
