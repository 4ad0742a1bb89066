"""A container as a jail: its process 1, its network, and the ways into it."""
