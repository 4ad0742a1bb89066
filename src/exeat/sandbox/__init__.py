"""Sandboxes that stay: names, allowlists and logs on disk, and how running commands are told of changes."""
