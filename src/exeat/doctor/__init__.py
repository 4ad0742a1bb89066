"""What this machine can enforce: the jails that work, the kernel's features, the versions in use."""
