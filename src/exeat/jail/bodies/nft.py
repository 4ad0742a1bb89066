"""The jail for root where network namespaces are not available: a uid of its own on the host's network.

Packet rules lead that uid to the gateway. The command is not the caller: it has a home and a TMPDIR that are empty,
private and gone afterwards, and reaches files as any stranger does.
"""

from __future__ import annotations

import os

from exeat.jail.bodies.namespaces import NamespaceJail, mounted_trust, try_out
from exeat.jail.jail import Built, Examination, Spec
from exeat.jail.limits.own_user import HOME, NAME, TMPDIR
from exeat.jail.limits.privileges import landlock_abi
from exeat.jail.net.fence import Fence, end_trial, open_fenced_sockets, raise_fence
from exeat.jail.process.place import Place

# Folders of the caller's: closed to the command, so better not named.
_CALLERS_FOLDERS = ("XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "MAIL")


class NftJail(NamespaceJail):
    def __init__(self, *, is_trial: bool = False) -> None:
        super().__init__()
        self._is_trial = is_trial
        self._fence: Fence | None = None

    def build(self, spec: Spec) -> Built:
        # Rules first, so that there is no moment in which a process of the uid is not held by them.
        fence = self._fence = raise_fence(is_trial=self._is_trial)
        self.raise_place(Place(spec, _environment(spec, fence.uid), (fence.uid, fence.uid)))
        sockets = open_fenced_sockets(fence)
        # Connections are redirected, so no one needs to log in. What is not redirected is not the command's.
        credentials = NAME, os.urandom(16).hex()
        return Built(sockets, credentials, self.init, self.namespaces, self.layers)

    def close(self) -> None:
        """When the gateway is gone, too: a closed socket with something left to send ends only with its peer."""
        super().close()
        fence, self._fence = self._fence, None
        if fence is not None:
            fence.remove()


def _environment(spec: Spec, uid: int) -> dict[str, str]:
    """The caller's, with the user's own folders. No proxy variables: the gateway takes redirected connections only."""
    own = {"HOME": HOME, "TMPDIR": TMPDIR, "USER": NAME, "LOGNAME": NAME, "XDG_RUNTIME_DIR": f"/run/user/{uid}"}
    kept = {name: value for name, value in spec.variables.inherited.items() if name not in _CALLERS_FOLDERS}
    variables = spec.variables.replace(inherited=kept | own)
    return variables.build(proxy_url=None, own_loopback=False, kept_sockets=spec.unix, trust=mounted_trust(spec))


def open_jail() -> NftJail:
    return NftJail()


def examine() -> Examination:
    try:
        try_out(NftJail(is_trial=True))
    finally:
        end_trial()
    unix = "" if landlock_abi() >= 6 else "; no Unix sockets inside without Landlock (Linux 6.12)"
    return Examination(True, f"packet rules around a uid of its own, as root; nothing can listen inside{unix}")
