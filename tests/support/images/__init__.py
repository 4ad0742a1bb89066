"""Images that tests build from and look into."""
