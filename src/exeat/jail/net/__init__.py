"""The jail's network."""
