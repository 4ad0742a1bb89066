"""The configured secrets and the sources of their values. The rest of `secrets` is pure."""
