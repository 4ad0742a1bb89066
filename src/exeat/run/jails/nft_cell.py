"""The nft jail for a run: a uid of its own on the host's network, with rules that lead it to the gateway.

The command is not the caller: it has a home and a TMPDIR that are empty, private and gone afterwards, and reaches
files as any stranger does.
"""

from __future__ import annotations

import os

from exeat.jail.bodies.namespaces import NamespaceJail
from exeat.jail.limits.own_user import HOME, NAME, TMPDIR
from exeat.jail.net.nft import Fence, open_fenced_sockets, raise_fence
from exeat.jail.process.builder import OwnTerminal, Spec
from exeat.run.environment import build_environment, inherited_environment
from exeat.run.files.hidden_files import working_directory
from exeat.run.files.seen_files import see_files
from exeat.run.gateway_process.preparations import NOTHING, Preparations
from exeat.run.gateway_process.process import GatewayProcess
from exeat.run.jails.cell import Cell, mounted_trust, tell_what_is_missing
from exeat.run.settings import RunSettings

# Folders of the caller's: closed to the command, so better not named.
_CALLERS_FOLDERS = ("XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "MAIL")


class NftCell(Cell):
    """A cell whose packet rules stay until they are taken away."""

    fence: Fence

    def close(self) -> None:
        super().close()
        self.fence.remove()


def open_nft_cell(
    settings: RunSettings, gateway: GatewayProcess, *, new_session: bool, terminal: OwnTerminal | None = None
) -> NftCell:
    """Build the jail: rules first, so that there is no moment in which a process of the uid is not held by them."""
    prepared = gateway.preparations() if settings.may_intercept else NOTHING
    seen = see_files(settings, prepared)
    fence = raise_fence()
    try:
        spec = Spec(
            settings.argv,
            _environment(settings, fence.uid, prepared),
            working_directory(),
            seen.view,
            own_network=False,
            run_as=(fence.uid, fence.uid),
            new_session=new_session,
            terminal=terminal,
        )
        jail = NamespaceJail(spec)
        jail.start_building()
        try:
            gateway.loopback_places()  # the rules are good, or nothing starts
            jail.finish_building()
            tell_what_is_missing(settings, jail)
            sockets = open_fenced_sockets(fence)
            cell = NftCell("nft", jail, sockets, seen)
        except BaseException:
            jail.kill()
            raise
    except BaseException:
        fence.remove()
        seen.close()
        raise
    cell.fence = fence
    # Connections are redirected, so nobody needs to log in. What is not redirected is not the command's.
    cell.credentials = (NAME, os.urandom(16).hex())
    return cell


def _environment(settings: RunSettings, uid: int, prepared: Preparations) -> dict[str, str]:
    """The caller's, with the user's own folders. No proxy variables: the gateway takes redirected connections only."""
    found = inherited_environment(settings.environ)
    inherited = {name: value for name, value in found.items() if name not in _CALLERS_FOLDERS}
    own = {"HOME": HOME, "TMPDIR": TMPDIR, "USER": NAME, "LOGNAME": NAME, "XDG_RUNTIME_DIR": f"/run/user/{uid}"}
    return build_environment(
        inherited | own,
        settings.env,
        clean=settings.clean_env,
        proxy_url=None,
        own_loopback=False,
        kept_sockets=settings.unix,
        placeholders=prepared.placeholders,
        trust=mounted_trust(prepared),
        sandbox=settings.name,
    )
