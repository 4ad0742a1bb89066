"""What this machine has for a guest: kernels as files, KVM, and what is kept of both from run to run."""
