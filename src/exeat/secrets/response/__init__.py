"""Values out: what comes back."""
