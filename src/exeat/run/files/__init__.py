"""The machine's files as the command sees them."""
