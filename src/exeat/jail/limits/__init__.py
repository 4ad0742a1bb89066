"""What the command may ask of the kernel."""
