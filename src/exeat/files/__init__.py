"""What is decided about files, and what is done with the layers that commands leave. Nothing here mounts anything."""
