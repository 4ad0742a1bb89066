"""A jail that stands, the policy for it, and the sockets to serve it: what must be there before anything starts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from exeat.errors import ConfigError, JailError
from exeat.jail.inmate import Spec
from exeat.jail.mounts import View
from exeat.jail.network import GATEWAY_PORT, HostPorts, Sockets
from exeat.jail.warden import Warden
from exeat.run.environment import build_environment
from exeat.run.settings import RunSettings

if TYPE_CHECKING:
    from exeat.gateway.limits import Limits
    from exeat.policy import Policy


class Cell:
    """A jail ready to be released. `close` takes away what outlives its processes."""

    def __init__(self, kind: str, warden: Warden, policy: Policy, limits: Limits, sockets: Sockets) -> None:
        self.kind = kind
        self.warden = warden
        self.policy = policy
        self.limits = limits
        self.sockets = sockets
        self.credentials: tuple[str, str] | None = None  # of the gateway, for those who come to it as to a proxy

    def close(self) -> None:
        """Nothing of a network namespace is left when its processes are gone."""


def open_cell(settings: RunSettings, *, new_session: bool) -> Cell:
    """Build the jail that was asked for. `auto`: netns, or nft if that cannot be had and we are root; never env."""
    if settings.jail in ("auto", "netns"):
        try:
            return _open_netns(settings, new_session=new_session)
        except JailError:
            if settings.jail == "netns" or os.geteuid() != 0:
                raise
    from exeat.run.nft_cell import open_nft_cell  # noqa: PLC0415 - root only, and rare

    return open_nft_cell(settings, new_session=new_session)


def _open_netns(settings: RunSettings, *, new_session: bool) -> Cell:
    # Reading the rules takes longer than building, so both go on at the same time, unless a rule changes the jail.
    loaded = settings.load() if settings.may_name_loopback else None
    spec = Spec(
        settings.argv,
        command_environment(settings, f"http://127.0.0.1:{GATEWAY_PORT}", own_loopback=True),
        os.getcwd(),
        build_view(settings),
        own_network=True,
        new_session=new_session,
        to_host=_loopback_places(loaded[0]) if loaded else [],
    )
    warden = Warden(spec)
    warden.start_building()
    try:
        policy, limits = loaded or settings.load()
        sockets = warden.finish_building()
        assert sockets is not None
    except BaseException:
        warden.kill()
        raise
    return Cell("netns", warden, policy, limits, sockets)


def _loopback_places(policy: Policy) -> list[HostPorts]:
    """Loopback addresses that the rules list: there the user means the host's servers, not the jail's own."""
    return [
        (rule.pattern.network.network_address.packed, low, high)
        for rule in policy.rules
        if not rule.deny and rule.pattern.network is not None
        if rule.pattern.network.is_loopback and rule.pattern.network.num_addresses == 1
        for low, high in rule.ports
    ]


def command_environment(settings: RunSettings, proxy_url: str, *, own_loopback: bool) -> dict[str, str]:
    return build_environment(
        os.environ,
        settings.env,
        clean=settings.clean_env,
        proxy_url=proxy_url if settings.proxy_env else None,
        own_loopback=own_loopback,
        kept_sockets=settings.unix,
    )


def build_view(settings: RunSettings) -> View:
    """Hide from the command what decides about it: its rules, its log, exeat's own state."""
    home = state_folder()
    for path in settings.unix:
        if not os.path.isabs(path) or not os.path.exists(path):
            raise ConfigError("no such socket", where=f"--unix {path}", expected="the full path of a Unix socket")
        if os.path.realpath(path).startswith(f"{os.path.realpath(home)}/"):
            raise ConfigError("this is exeat's own", where=f"--unix {path}", expected="a socket of another program")
    hidden = [path for path in (settings.audit, *settings.policy_files) if path and os.path.isfile(path)]
    return View(list(settings.unix), hidden, [home])


def state_folder() -> str:
    """Where exeat keeps what it stores."""
    given = os.environ.get("EXEAT_HOME")
    if given:
        return given
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return f"{base}/exeat"
