"""What the command sees of the machine's files."""
