"""This machine's resources for a guest: kernel files, KVM, and cached results about both."""
