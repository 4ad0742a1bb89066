"""The commands and options of virtual machines."""
