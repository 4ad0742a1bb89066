"""What is on record, and what is counted."""
