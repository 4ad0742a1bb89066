"""What a command sees of the machine's files, and what becomes of what it writes: decided here, mounted elsewhere."""
