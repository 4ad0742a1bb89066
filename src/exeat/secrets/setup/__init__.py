"""What secrets there are, and where their values come from. The rest of `secrets` is pure."""
