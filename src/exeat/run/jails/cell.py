"""A jail that stands, the policy for it, and the sockets to serve it: what must be there before anything starts."""

from __future__ import annotations

import os

from exeat.errors import JailError
from exeat.jail.bodies.namespaces import NamespaceJail
from exeat.jail.files.mounts import BLANK, BUNDLE, OWN_CERTIFICATE, PINS
from exeat.jail.files.view import read_notes
from exeat.jail.net.network import GATEWAY_PORT, Sockets
from exeat.jail.process.builder import OwnTerminal, Spec
from exeat.run.environment import build_environment, inherited_environment
from exeat.run.files.held_places import HeldPlaces
from exeat.run.files.hidden_files import working_directory
from exeat.run.files.layer_end import LayerEnd, end_layer
from exeat.run.files.project_guard import ProjectGuard
from exeat.run.files.seen_files import SeenFiles, see_files
from exeat.run.gateway_process.preparations import NOTHING, Preparations
from exeat.run.gateway_process.process import GatewayProcess
from exeat.run.settings import RunSettings
from exeat.run.summary import say


class Cell:
    """A jail ready to be released. `close` takes away what outlives its processes."""

    def __init__(self, kind: str, jail: NamespaceJail, sockets: Sockets, seen: SeenFiles) -> None:
        self.kind = kind
        self.seen = seen
        self.jail = jail
        self.sockets = sockets
        self.credentials: tuple[str, str] | None = None  # of the gateway, for those who come to it as to a proxy
        self.guard: ProjectGuard | None = None
        holdings = seen.view.holdings
        if any(holdings):
            # Elsewhere nothing is replaced: what is read-only there is so by the layers.
            shared = tuple(place for place in holdings.read_only if place.root in seen.view.shared)
            self.guard = ProjectGuard(holdings._replace(read_only=shared), jail.namespaces, PINS, BLANK)
        # A program with namespaces of its own gets past mounts.
        open_places = holdings.read_only if jail.may_nest else holdings.second_names
        places = [(place.root, place.path) for place in open_places if place.root in seen.view.shared]
        folders = [(place.root, place.path) for place in holdings.pinned] if jail.may_nest else []
        self._copies = HeldPlaces(places, folders) if places or folders else None

    def end_layer(self, settings: RunSettings, began: float) -> LayerEnd:
        """When the command is gone: count what it wrote to its layer, and keep that or not."""
        held, self.jail.layers = self.jail.layers, -1
        return end_layer(held, settings, self.seen.view.not_there, began, self.seen.save) if held >= 0 else LayerEnd()

    def sweep(self) -> list[str]:
        """When the command is gone: see that nothing which runs outside later was changed. Lines for the user."""
        lines = self._copies.put_back() if self._copies is not None else []
        return lines + (self.guard.sweep() if self.guard is not None else [])

    def close(self) -> None:
        """Nothing of a network namespace is left when its processes are gone, but for a layer on disk."""
        if self.guard is not None:
            self.guard.close()
        if self._copies is not None:
            self._copies.close()
        self.seen.close()


def open_cell(
    settings: RunSettings, gateway: GatewayProcess, *, new_session: bool, terminal: OwnTerminal | None = None
) -> Cell:
    """Build the jail that was asked for. `auto`: netns, or nft if that cannot be had and we are root; never env."""
    if settings.jail in ("auto", "netns"):
        try:
            return _open_netns(settings, gateway, new_session=new_session, terminal=terminal)
        except JailError as error:
            if settings.jail == "netns" or not error.is_missing or os.geteuid() != 0:
                raise
            say(f"{error.public} ({error.detail}); taking the nft jail instead")
    from exeat.run.jails.nft_cell import open_nft_cell  # noqa: PLC0415 - root only, and rare

    return open_nft_cell(settings, gateway, new_session=new_session, terminal=terminal)


def _open_netns(
    settings: RunSettings, gateway: GatewayProcess, *, new_session: bool, terminal: OwnTerminal | None = None
) -> Cell:
    # Reading the rules takes longer than building, so both go on at the same time, unless a rule changes the jail.
    to_host = gateway.loopback_places() if settings.may_name_loopback else []
    prepared = gateway.preparations() if settings.may_intercept else NOTHING
    seen = see_files(settings, prepared)
    spec = Spec(
        settings.argv,
        command_environment(settings, f"http://127.0.0.1:{GATEWAY_PORT}", prepared),
        working_directory(),
        seen.view,
        own_network=True,
        new_session=new_session,
        terminal=terminal,
        to_host=to_host,
        nest=settings.files.nest,
    )
    jail = NamespaceJail(spec)
    jail.start_building()
    try:
        sockets = jail.finish_building()
        assert sockets is not None
        gateway.loopback_places()  # the rules are good, or nothing starts
        tell_what_is_missing(settings, jail)
        return Cell("netns", jail, sockets, seen)
    except BaseException:
        jail.kill()
        seen.close()
        raise


def tell_what_is_missing(settings: RunSettings, jail: NamespaceJail) -> None:
    """Of the machine's files, in the command's view. It is what explains errors that nothing else does."""
    if jail.layers >= 0 and not settings.quiet:
        for note in read_notes(jail.layers):
            say(note)


def command_environment(settings: RunSettings, proxy_url: str, prepared: Preparations) -> dict[str, str]:
    return build_environment(
        inherited_environment(settings.environ),
        settings.env,
        clean=settings.clean_env,
        proxy_url=proxy_url if settings.proxy_env else None,
        own_loopback=True,
        kept_sockets=settings.unix,
        placeholders=prepared.placeholders,
        trust=mounted_trust(prepared),
        sandbox=settings.name,
    )


def mounted_trust(prepared: Preparations) -> dict[str, str]:
    """Variables for what is mounted in the jail. Java's store is put in the place of its own."""
    if prepared.trust is None:
        return {}
    from exeat.trust.places import trust_variables  # noqa: PLC0415 - only where there is something to trust

    return trust_variables(BUNDLE, own=OWN_CERTIFICATE)
