"""Byte strings in streams: found, replaced, unpacked."""
