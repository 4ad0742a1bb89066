"""Log files and pipes, written and read back."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from exeat.audit.logfile import LogFile
from exeat.audit.record import Record, encode_event
from exeat.audit.verify import Checker, Verification

POLICY = ',"policy":"p"'


def put(file: LogFile, *events: str, **fields: int) -> None:
    file.write([encode_event(event, **fields) + POLICY for event in events], wait=True)


def read(path: str | Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_bytes().splitlines()]


def verify_lines(lines: Iterable[bytes], *, expect_head: str | None = None) -> Verification:
    """Check lines, each with its newline, as one log."""
    checker = Checker(expect_head)
    for line in lines:
        checker.feed(line)
    return checker.result()


F_SETPIPE_SZ = 1031


def body(number: int = 0) -> str:
    return Record(req=number, host="a.example", verdict="allow").encode("decision")


def small_pipe() -> tuple[int, int]:
    reader, writer = os.pipe()
    fcntl.fcntl(writer, F_SETPIPE_SZ, 4096)
    return reader, writer


def read_all(fd: int) -> bytes:
    with os.fdopen(fd, "rb") as file:
        return file.read()
