"""A jail that stands, the policy for it, and the sockets to serve it: what must be there before anything starts."""

from __future__ import annotations

import os
import stat

from exeat.errors import ConfigError, JailError, StartError
from exeat.jail.devices import is_device, is_terminal_of_host
from exeat.jail.inmate import OwnTerminal, Spec
from exeat.jail.mounts import BUNDLE, OWN_CERTIFICATE, View
from exeat.jail.network import GATEWAY_PORT, Sockets
from exeat.jail.view import Layers, is_below
from exeat.jail.warden import Warden
from exeat.run.environment import build_environment, inherited_environment
from exeat.run.gatekeeper import Gatekeeper
from exeat.run.own_code import OwnCode
from exeat.run.preparations import NOTHING, Preparations
from exeat.run.settings import RunSettings
from exeat.run.summary import say
from exeat.sandbox.home import state_home


class Cell:
    """A jail ready to be released. `close` takes away what outlives its processes."""

    def __init__(self, kind: str, warden: Warden, sockets: Sockets) -> None:
        self.kind = kind
        self.warden = warden
        self.sockets = sockets
        self.credentials: tuple[str, str] | None = None  # of the gateway, for those who come to it as to a proxy

    def close(self) -> None:
        """Nothing of a network namespace is left when its processes are gone."""


def open_cell(
    settings: RunSettings, gatekeeper: Gatekeeper, *, new_session: bool, terminal: OwnTerminal | None = None
) -> Cell:
    """Build the jail that was asked for. `auto`: netns, or nft if that cannot be had and we are root; never env."""
    if settings.jail in ("auto", "netns"):
        try:
            return _open_netns(settings, gatekeeper, new_session=new_session, terminal=terminal)
        except JailError as error:
            if settings.jail == "netns" or not error.is_missing or os.geteuid() != 0:
                raise
            say(f"{error.public} ({error.detail}); taking the nft jail instead")
    from exeat.run.nft_cell import open_nft_cell  # noqa: PLC0415 - root only, and rare

    return open_nft_cell(settings, gatekeeper, new_session=new_session, terminal=terminal)


def _open_netns(
    settings: RunSettings, gatekeeper: Gatekeeper, *, new_session: bool, terminal: OwnTerminal | None = None
) -> Cell:
    # Reading the rules takes longer than building, so both go on at the same time, unless a rule changes the jail.
    to_host = gatekeeper.loopback_places() if settings.may_name_loopback else []
    prepared = gatekeeper.preparations() if settings.may_intercept else NOTHING
    spec = Spec(
        settings.argv,
        command_environment(settings, f"http://127.0.0.1:{GATEWAY_PORT}", prepared),
        working_directory(),
        build_view(settings, prepared),
        own_network=True,
        new_session=new_session,
        terminal=terminal,
        to_host=to_host,
    )
    warden = Warden(spec)
    warden.start_building()
    try:
        sockets = warden.finish_building()
        assert sockets is not None
        gatekeeper.loopback_places()  # the rules are good, or nothing starts
    except BaseException:
        warden.kill()
        raise
    return Cell("netns", warden, sockets)


def working_directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise ConfigError("the working directory does not exist any more", where="exeat run", expected="cd") from None


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
    from exeat.trust.variables import trust_variables  # noqa: PLC0415 - only where there is something to trust

    return trust_variables(BUNDLE, own=OWN_CERTIFICATE)


def build_view(settings: RunSettings, prepared: Preparations = NOTHING) -> View:
    """What the command sees of the machine's files."""
    for path in settings.unix:
        if not os.path.isabs(path) or not _is_socket(path):
            raise ConfigError("no such socket", where=f"--unix {path}", expected="the full path of a Unix socket")
    for path in settings.devices:
        if not is_device(path):
            raise ConfigError("no such device", where=f"--device {path}", expected="the full path of a file in /dev")
        if is_terminal_of_host(path):
            raise ConfigError("terminals are the jail's own", where=f"--device {path}", expected="another device")
    real = [working_directory()]
    hidden = _own_files(settings, prepared)
    layers = Layers(real, limit=settings.files.layer_bytes, fill_mask=lambda mask: None)
    view = View(layers, settings.unix)
    view.not_there = hidden
    view.hidden = [path for path in hidden if any(is_below(path, root) for root in view.shared)]
    view.trust = prepared.trust
    view.devices = settings.devices
    code = OwnCode(os.path.expanduser("~"), working_directory())
    view.read_only = [*code.read_only, *(path for path in settings.upstream_ca if os.path.isfile(path))]
    return view


def _own_files(settings: RunSettings, prepared: Preparations) -> list[str]:
    """What decides about the command, or tells of it: rules, secrets, logs, exeat's own state. Paths without links."""
    log = (settings.audit, *settings.log_files)
    written = (*dict.fromkeys(log), settings.learn_out, settings.summary_json)
    files = (*written, *settings.policy_files, *settings.secrets_files, *prepared.hidden)
    for path in prepared.hidden:
        _refuse_second_name(path)
    found = [os.path.realpath(path) for path in files if path and _can_be_hidden(path)]
    try:
        found.append(os.path.realpath(state_home()))
    except ConfigError:
        pass  # no home, and so no state
    return list(dict.fromkeys(found))


def _refuse_second_name(path: str) -> None:
    """Of a file with a value in it: only names that are known can be hidden."""
    try:
        found = os.stat(path)
    except OSError:
        return  # gone, or out of the command's reach as well
    if stat.S_ISREG(found.st_mode) and found.st_nlink > 1:
        raise StartError(
            f"{path!r} holds a secret and has a second name (a hard link), by which the command could read it",
            detail="remove the other name, or name a file that has one",
        )


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return False


def _can_be_hidden(path: str) -> bool:
    """A file or a pipe. Standard output and devices are the command's as well."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode) or (stat.S_ISFIFO(mode) and not path.startswith(("/dev/", "/proc/")))
