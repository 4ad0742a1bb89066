"""The jail: namespaces, packet rules, system call filter and lost privileges around one command."""
