"""`exeat audit verify`."""

from __future__ import annotations

from collections.abc import Sequence

from exeat.audit.verify import describe, verify_files
from exeat.errors import ConfigError


def verify_logs(paths: Sequence[str], head: str | None) -> int:
    """Print what was found; 0 intact, 1 not."""
    try:
        found = verify_files(paths, expect_head=head)
    except OSError as error:
        raise ConfigError(
            f"cannot be read: {error.strerror}", where=str(error.filename), expected="an audit log"
        ) from None
    for line in describe(found):
        print(line)
    return 0 if found.ok else 1
