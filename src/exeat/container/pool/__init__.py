"""Warm sandboxes, and what makes one someone's for a while."""
