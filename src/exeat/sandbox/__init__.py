"""Kept sandboxes: names, allowlists and logs on disk, and how running commands learn of changes."""
