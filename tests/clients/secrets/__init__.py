"""Real programs that send a placeholder and must have sent the value."""
