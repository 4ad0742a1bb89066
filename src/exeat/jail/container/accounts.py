"""An account for the command's user, in a container: without one `whoami`, ssh and git complain. Pure."""

from __future__ import annotations

from typing import Final

from exeat.values import Value

_NAME: Final = b"sandbox"


class Accounts(Value):
    """`passwd` and `group` as an image has them; empty if it has none."""

    passwd: bytes = b""
    group: bytes = b""


def with_account(found: Accounts, user: str, home: str) -> Accounts:
    """With a line for this user, whose home is there. `user` is NAME, UID or UID:GID."""
    number, _, group = user.encode().partition(b":")
    lines = [line.split(b":") for line in found.passwd.split(b"\n") if line.count(b":") == 6]
    own = next((fields for fields in lines if number in (fields[0], fields[2])), None)
    if own is not None:
        own[5] = home.encode()
    elif number.isdigit():
        lines.append([_free_name(lines, number), b"x", number, group or number, _NAME, home.encode(), b"/bin/sh"])
    groups = [line.split(b":") for line in found.group.split(b"\n") if line.count(b":") == 3]
    if group.isdigit() and all(fields[2] != group for fields in groups):
        groups.append([_free_name(groups, group), b"x", group, b""])
    return Accounts(_as_text(lines), _as_text(groups))


def _free_name(lines: list[list[bytes]], number: bytes) -> bytes:
    return _NAME if all(fields[0] != _NAME for fields in lines) else _NAME + b"-" + number


def _as_text(lines: list[list[bytes]]) -> bytes:
    return b"".join(b":".join(fields) + b"\n" for fields in lines)
