"""The command's files, as the kernel shows them."""
