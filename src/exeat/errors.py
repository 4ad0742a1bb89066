"""Errors, split by who may read which part.

A denial is a value (`exeat.policy.Decision`), never an exception. An exception means that something
broke. It carries a sentence that anyone may read, including the sandbox, and a detail for the log only.
"""

from __future__ import annotations

import errno

_LOG_ADVICE = {
    errno.ENOENT: "its folder does not exist: create it first",
    errno.ENOTDIR: "a part of its path is not a folder",
    errno.EACCES: "no permission: choose a place that you may write to",
    errno.EROFS: "the file system is read-only: choose another place",
    errno.ELOOP: "it is a symbolic link: name the file itself",
    errno.EISDIR: "it is a folder: name a file in it",
    errno.ENXIO: "nothing reads this pipe: start its reader first",
    errno.EBADF: "the standard stream is closed: name a file",
    errno.EINVAL: "it holds something that is not an audit log: name another file",
}


class ExeatError(Exception):
    """Base of everything exeat raises on purpose."""

    def __init__(self, public: str, *, detail: str = "") -> None:
        super().__init__(public)
        self.public = public
        self.detail = detail


class ConfigError(ExeatError):
    """The user's settings cannot be used. Nothing may start. `where` reads `file:line:column`."""

    def __init__(self, public: str, *, where: str = "", expected: str = "") -> None:
        super().__init__(public)
        self.where = where
        self.expected = expected

    def __str__(self) -> str:
        head = f"{self.where}: {self.public}" if self.where else self.public
        return f"{head}\n  expected: {self.expected}" if self.expected else head


class HostError(ExeatError):
    """Text that is not a host in any form we accept. Never to be read as "no rule matched"."""


class ProtocolError(ExeatError):
    """A peer broke the protocol. `status` is what an HTTP client is answered with."""

    def __init__(self, public: str, *, status: int = 400, detail: str = "") -> None:
        super().__init__(public, detail=detail)
        self.status = status


class AuditError(ExeatError):
    """A record could not be written. The request it belongs to must not go out."""


class StartError(ExeatError):
    """The gateway could not start: a port is taken, a file cannot be opened."""


def log_not_opened(path: str, error: OSError) -> StartError:
    """For everyone who opens an audit log: what is wrong with its path, and what to do about it."""
    advice = _LOG_ADVICE.get(error.errno or 0) or error.strerror or str(error)
    return StartError(f"cannot open the audit log {path!r}: {advice}", detail=str(error))


class JailError(ExeatError):
    """The jail that was asked for is not available. Never answered with a weaker one. `fix` is what to do about it.

    `is_missing`: the machine does not offer this kind of jail, as opposed to a fault in building this one.
    """

    def __init__(self, public: str, *, detail: str = "", fix: str = "", is_missing: bool = False) -> None:
        super().__init__(public, detail=detail)
        self.fix = fix
        self.is_missing = is_missing

    def __str__(self) -> str:
        lines = [self.public]
        if self.detail:
            first, *more = self.detail.split("\n")
            lines += [f"  why: {first}", *(f"       {each}" for each in more)]
        if self.fix:
            lines.append(f"  fix: {self.fix}")
        # The command may have chosen the names of files in it.
        return "\n".join("".join(char if char.isprintable() else "?" for char in line) for line in lines)
