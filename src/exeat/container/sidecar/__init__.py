"""The gateway next to containers: networks without a way out, and the one container that has one."""

from exeat.container.sidecar.networks import ensure_network, remove_network
from exeat.container.sidecar.proxy import Proxy, ensure_proxy

__all__ = ["Proxy", "ensure_network", "ensure_proxy", "remove_network"]
