"""What is decided about the command's files, and what is done with what it wrote. Nothing is mounted here."""
