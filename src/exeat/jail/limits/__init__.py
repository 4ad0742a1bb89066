"""Limits on the command's use of the kernel."""
