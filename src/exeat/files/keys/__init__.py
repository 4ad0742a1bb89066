"""What is hidden from a command."""
