"""Values in responses."""
