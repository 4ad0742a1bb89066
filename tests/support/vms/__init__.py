"""QEMU and kernels for the tests with real guests."""
