"""What in a shared folder would run outside later."""
