"""Values in: what is sent."""
