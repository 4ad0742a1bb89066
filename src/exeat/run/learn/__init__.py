"""What a command reached, as a policy."""
