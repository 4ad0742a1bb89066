"""The certificates of one run: its own authority, the roots for servers, and the roots for the command."""
