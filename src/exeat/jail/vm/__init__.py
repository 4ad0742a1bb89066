"""A virtual machine inside the jail: QEMU is the jail's command, and has no other network."""
