"""For programs with a `SandboxManager`."""
