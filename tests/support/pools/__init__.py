"""Pools without an engine: sandboxes that are listeners and an answer, and break when they are told to."""
