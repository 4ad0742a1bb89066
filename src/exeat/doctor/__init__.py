"""What this machine can enforce: the jails that can be had, the kernel's features, the versions in use."""
