"""What a command wrote, kept and shown."""
