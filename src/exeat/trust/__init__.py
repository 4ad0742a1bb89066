"""The certificates of one run: its own authority, what the upstream is checked against, what the command trusts."""
