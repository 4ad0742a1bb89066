"""Serving a guest's files: by its own virtiofsd, or by QEMU itself (9p)."""

from __future__ import annotations

import resource
import socket
from collections.abc import Sequence
from typing import Final

from exeat.jail.vm.machine import NineP, VirtioFs
from exeat.jail.vm.tree import GUEST
from exeat.values import Value

VIRTIOFS, NINE_P = "virtiofs", "9p"
ROOT_TAG: Final = "root"
_SEEN_MEANWHILE: Final = 2_048  # files that a guest may see while its server has not yet heard which it has forgotten


class Tree(Value):
    """One that the guest mounts. `path` is that in QEMU's root."""

    tag: str = ROOT_TAG
    path: str = GUEST
    read_only: bool = False


class Server(Value):
    """A program to be started next to QEMU."""

    argv: tuple[str, ...]
    kept: tuple[int, ...]

    def arguments(self) -> Sequence[str]:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft < hard:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # one for each file that the guest has open
        return self.argv


class Served(Value):
    """`virtiofsd` is the path of that program, or "" for 9p; `is_rust`: the newer one of the two that there are."""

    trees: tuple[Tree, ...] = (Tree(),)
    virtiofsd: str = ""
    is_rust: bool = False

    @property
    def kind(self) -> str:
        return VIRTIOFS if self.virtiofsd else NINE_P

    def most_known_files(self) -> int:
        """That a guest remembers: virtiofsd has a descriptor for each, and needs others. 0: it does not matter."""
        if not (self.virtiofsd and self.trees):
            return 0
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        return max(most // 4, min(most // 2, most - _SEEN_MEANWHILE))

    def open(self) -> tuple[tuple[VirtioFs | NineP, ...], list[Server]]:
        """What QEMU gets, and what is to be started for it. To be called by the supervisor."""
        if not self.virtiofsd:
            return tuple(NineP(tree.path, tree.tag, tree.read_only) for tree in self.trees), []
        shares: list[VirtioFs | NineP] = []
        servers = []
        for tree in self.trees:
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            listener.bind(b"")  # to a name of the kernel's choice, in the jail's own network
            listener.listen(1)
            connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connected.connect(listener.getsockname())
            number = listener.detach()
            servers.append(Server((self.virtiofsd, *self._options(number, tree)), (number,)))
            shares.append(VirtioFs(connected.detach(), tree.tag))
        return tuple(shares), servers

    def _options(self, number: int, tree: Tree) -> list[str]:
        if self.is_rust:
            options = [f"--fd={number}", f"--shared-dir={tree.path}", "--sandbox=chroot", "--announce-submounts"]
            return [*options, "--log-level=error"]
        pairs = (f"source={tree.path}", "sandbox=chroot", "announce_submounts", "log_level=err")
        return [f"--fd={number}", "--rlimit-nofile=0", *(part for pair in pairs for part in ("-o", pair))]

    @staticmethod
    def to_close(shares: Sequence[VirtioFs | NineP], servers: Sequence[Server]) -> list[int]:
        """What the supervisor has no use for, once all are started."""
        taken = [share.fd for share in shares if isinstance(share, VirtioFs)]
        return [*taken, *(fd for server in servers for fd in server.kept)]
