"""How a client speaks."""
