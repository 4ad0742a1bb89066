"""The corpus in a virtual machine: how it is run there, and what only a guest can try."""
