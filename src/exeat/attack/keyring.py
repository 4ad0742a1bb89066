"""A secret in the caller's session keyring, which every process inherits and no namespace hides."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator

from exeat.attack.model import Absent
from exeat.attack.moves import number_of, syscall

_SESSION = -3  # KEY_SPEC_SESSION_KEYRING
_JOIN, _REVOKE, _SEARCH, _READ = 1, 3, 10, 11


@contextlib.contextmanager
def keep_key() -> Iterator[tuple[str, str]]:
    """A key's name and its secret, for as long as the context lasts. No name where the kernel has no keyrings."""
    name, secret = f"exeat-attack-{secrets.token_hex(6)}", f"key-{secrets.token_hex(12)}"
    try:
        # A keyring of our own, so that nothing is put into the one of the user's session.
        syscall(number_of("keyctl"), _JOIN, None)
        key = syscall(number_of("add_key"), b"user", name.encode(), secret.encode(), len(secret), _SESSION)
    except (OSError, Absent):
        yield "", secret
        return
    try:
        yield name, secret
    finally:
        with contextlib.suppress(OSError):
            syscall(number_of("keyctl"), _REVOKE, key)


def read_key(name: str) -> str:
    """What a probe does: find the key by its name and read it."""
    import ctypes  # noqa: PLC0415

    key = syscall(number_of("keyctl"), _SEARCH, _SESSION, b"user", name.encode(), 0)
    buffer = ctypes.create_string_buffer(256)
    size = syscall(number_of("keyctl"), _READ, key, buffer, len(buffer))
    return buffer.raw[:size].decode()
