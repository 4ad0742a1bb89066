"""Landlock, used for one thing: abstract Unix sockets and signals reach nothing outside the sandbox.

A second wall. Abstract names belong to the network namespace, and process numbers to the pid namespace; where one of
those is shared, this still holds. Files are not its business here: it never handles a right to them.
"""

from __future__ import annotations

import errno
import os
import struct

from exeat.jail.libc import syscall

# The same numbers on every machine.
_CREATE_RULESET = 444
_RESTRICT_SELF = 446

_CREATE_RULESET_VERSION = 1
_SCOPE_ABSTRACT_UNIX_SOCKET = 1
_SCOPE_SIGNAL = 2
_ABI_WITH_SCOPES = 6  # Linux 6.12


def landlock_abi() -> int:
    """Which version of Landlock the kernel offers. 0 if there is none, or it was switched off at boot."""
    try:
        return syscall(_CREATE_RULESET, None, 0, _CREATE_RULESET_VERSION)
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EOPNOTSUPP):
            return 0
        raise


def scope_abstract_sockets(*, signals: bool = True) -> bool:
    """Keep this thread, and all it starts, from abstract Unix sockets and processes that were there before. For good.

    False, and nothing done, if the kernel is too old. `no_new_privs` must be set. As with every Landlock domain, no
    process outside it can be traced either; inside, debuggers work.
    """
    if landlock_abi() < _ABI_WITH_SCOPES:
        return False
    scoped = _SCOPE_ABSTRACT_UNIX_SOCKET | (_SCOPE_SIGNAL if signals else 0)
    attributes = struct.pack("=QQQ", 0, 0, scoped)  # no rights to files, no rights to ports, scopes
    ruleset = syscall(_CREATE_RULESET, attributes, len(attributes), 0)
    try:
        syscall(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)
    return True
