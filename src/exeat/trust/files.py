"""What a command is to trust, as open files on their way from the gateway's process into the jail."""

from __future__ import annotations


class TrustFiles:
    """Descriptors: the roots with ours, ours alone, and both as a Java key store. All of it is public."""

    __slots__ = ("bundle", "java", "own", "subject_hash")

    def __init__(self, bundle: int, own: int, java: int, subject_hash: str) -> None:
        self.bundle = bundle
        self.own = own
        self.java = java
        self.subject_hash = subject_hash
