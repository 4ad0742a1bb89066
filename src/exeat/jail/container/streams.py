"""The caller's standard streams, as a command in a container may have them.

They are handed over as they are, so what holds in the usual jail must hold here: a folder or a socket would lead out of
the container, and a file that the caller opened for reading could be opened again for writing (/proc/self/fd).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from typing import NoReturn

from exeat.jail import libc, messages
from exeat.jail.explain import explain_failure
from exeat.jail.process import descriptors
from exeat.jail.process.place import Step, StepError, report


class Streams:
    """Three descriptors to hand over; none is a file that is `hidden`. Raises JailError. One thread only."""

    def __init__(self, hidden: Iterable[str] = ()) -> None:
        self._held: dict[int, int] = {}  # instead of the caller's own
        try:
            with Step("descriptors"):
                descriptors.check_standard_streams(descriptors.Hidden(hidden))
        except StepError as problem:
            raise explain_failure(*messages.failure(problem.step, problem.error)) from None
        if wanted := descriptors.to_be_held():
            self._hold(wanted)

    @property
    def descriptors(self) -> list[int]:
        return [self._held.get(number, number) for number in (0, 1, 2)]

    def _hold(self, wanted: list[int]) -> None:
        """In a process of its own: the mounts that this takes are to be seen nowhere else."""
        ours, theirs = messages.open_channel()
        child = os.fork()
        if child == 0:
            ours.close()
            _hold_and_send(wanted, theirs)
        theirs.close()
        try:
            message, received = messages.receive(ours, len(wanted))
        finally:
            ours.close()
            os.waitpid(child, 0)
        if isinstance(message, messages.Failed):
            raise explain_failure(*message)
        self._held = dict(zip(wanted, received, strict=True))

    def close(self) -> None:
        """The caller's own stream goes on where the command stopped, as if it had been the same."""
        for number, held in self._held.items():
            os.lseek(number, os.lseek(held, 0, os.SEEK_CUR), os.SEEK_SET)
            os.close(held)
        self._held = {}


def _hold_and_send(wanted: list[int], channel: socket.socket) -> NoReturn:
    try:
        with Step("descriptors"):
            if _has_own_mounts(wanted):
                descriptors.hold_read_only()
        messages.send(channel, messages.Word.READY, wanted)
    except BaseException as problem:
        report(channel, "descriptors", problem)
    finally:
        os._exit(0)


def _has_own_mounts(wanted: list[int]) -> bool:
    """False: there can be none, and the command could change none of these files either. Raises OSError if it could."""
    try:
        _enter_own_mounts()
    except OSError as error:
        for number in wanted:
            if descriptors.may_change(number):
                raise descriptors.cannot_hold(number, error) from None
        return False
    return True


def _enter_own_mounts() -> None:
    """Root has them at once; others have them in a user namespace, where that is allowed."""
    uid, gid = os.geteuid(), os.getegid()
    if uid == 0:
        libc.unshare(libc.CLONE_NEWNS)
        return
    libc.unshare(libc.CLONE_NEWUSER | libc.CLONE_NEWNS)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
