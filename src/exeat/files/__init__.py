"""The machine's files as a command sees them, and its changes: decided here, mounted elsewhere."""
