"""Questions, and the terminal on which they are asked."""
