"""The usual jail: namespaces of its own, that of the network among them. No root needed."""

from __future__ import annotations

import os

from exeat.jail.bodies.namespaces import NamespaceJail, mounted_trust, try_out
from exeat.jail.jail import Built, Examination, Spec
from exeat.jail.net.network import GATEWAY_PORT
from exeat.jail.process.place import Place


class NetnsJail(NamespaceJail):
    def build(self, spec: Spec) -> Built:
        sockets = self.raise_place(Place(spec, self.environ(spec)))
        return Built(sockets, None, self.init, self.namespaces, self.layers)

    def environ(self, spec: Spec) -> dict[str, str]:
        """The command's. Raises ConfigError."""
        return spec.variables.build(
            proxy_url=f"http://127.0.0.1:{GATEWAY_PORT}",
            own_loopback=True,
            kept_sockets=spec.unix,
            trust=mounted_trust(spec),
        )


def open_jail() -> NetnsJail:
    return NetnsJail()


def examine() -> Examination:
    try_out(NetnsJail())
    how = "as root" if os.geteuid() == 0 else "as an ordinary user"
    return Examination(True, f"user, network, mount and PID namespaces, {how}")
