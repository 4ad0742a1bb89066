"""Finds the program of the jail at the other end of a connection, for questions.

The kernel knows the socket by its address inside, and the process by its descriptors. All that is told is what a
program is called, which is its own choice; so it is a hint, and no part of any decision. The work is bounded: a
program that hides among very many others is not found, nor are all of those who ask very often, and the question is
asked without it.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address

_MAX_TABLE = 2 * 1024 * 1024
_MAX_PROCESSES = 512
_MAX_THREADS = 2_048  # of all of them: each has a list of its own
_MAX_DESCRIPTORS = 8_192
_MAX_NAME = 48
_REST = 9  # times as long as the last search worked: the gateway has other work
_MAPPED = bytes(10) + b"\xff\xff"


class ProgramFinder:
    """`init` is process 1 of the jail: all others are its descendants, and it is in the jail's network."""

    def __init__(self, init: int) -> None:
        self._proc = f"/proc/{init}"
        self._init = init
        self._rests_until = 0.0

    def find(self, peer: object) -> str:
        """The name of the program at this address inside; "" if it cannot be told."""
        if time.monotonic() < self._rests_until:
            return ""
        began = time.thread_time()  # not the time that others have had the processor
        found = self._find(peer)
        self._rests_until = time.monotonic() + _REST * (time.thread_time() - began)
        return found

    def _find(self, peer: object) -> str:
        if not isinstance(peer, tuple):  # what a transport has for it, if anything
            return ""
        try:
            host, port = peer[:2]
            inode = self._inode(ip_address(host.partition("%")[0]), int(port))
            return self._name(inode) if inode else ""
        except (OSError, ValueError, TypeError):
            return ""

    def _inode(self, ip: IPv4Address | IPv6Address, port: int) -> str:
        """Of the client's socket. The gateway's own end has that address on its far side."""
        wanted = {f"{_spell(ip.packed)}:{port:04X}"}
        if ip.version == 4:  # a socket for both families has it so
            wanted.add(f"{_spell(_MAPPED + ip.packed)}:{port:04X}")
        for table in ("tcp", "tcp6"):
            with open(f"{self._proc}/net/{table}", encoding="ascii") as file:
                for line in file.read(_MAX_TABLE).splitlines()[1:]:
                    fields = line.split()
                    if len(fields) > 9 and fields[1] in wanted and fields[9] != "0":
                        return fields[9]
        return ""

    def _name(self, inode: str) -> str:
        looked_at = 0
        for pid in self._processes():
            try:
                with os.scandir(f"/proc/{pid}/fd") as entries:
                    for entry in entries:
                        looked_at += 1
                        if looked_at > _MAX_DESCRIPTORS:
                            return ""
                        if _link(entry.path) == f"socket:[{inode}]":
                            return _called(pid)
            except OSError:
                continue  # it has ended, or does not let itself be looked at
        return ""

    def _processes(self) -> Iterator[int]:
        """All of the jail but its init, the nearest first."""
        found = [self._init]
        threads_left = _MAX_THREADS
        for pid in found:  # grows meanwhile
            threads = _threads(pid)[:threads_left]
            threads_left -= len(threads)
            for child in _children(pid, threads):
                if len(found) > _MAX_PROCESSES:
                    return
                found.append(child)
                yield child


def _spell(packed: bytes) -> str:
    """As /proc/net has it: in words of the machine's own byte order."""
    return "".join(f"{word:08X}" for word in struct.unpack(f"={len(packed) // 4}I", packed))


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _threads(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []  # it has ended


def _children(pid: int, threads: list[str]) -> list[int]:
    found: list[int] = []
    try:
        for thread in threads:
            with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file:
                found += map(int, file.read().split())
    except (OSError, ValueError):
        pass  # it has ended
    return found


def _called(pid: int) -> str:
    """What it calls itself, and the file it was started from if that is another name: pip (python3.12)."""
    with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
        name = file.read().rstrip("\n")
    program = os.path.basename(_link(f"/proc/{pid}/exe").removesuffix(" (deleted)"))
    if not program or program.startswith(name):
        return _printable(program or name)
    return f"{_printable(name)} ({_printable(program)})"


def _printable(text: str) -> str:
    """It is shown to people: nothing that a terminal obeys, and no letters that look like others."""
    return "".join(char if " " <= char <= "~" else "?" for char in text[:_MAX_NAME])
