"""Values in requests."""
