"""A jail that stands, the policy for it, and the sockets to serve it: what must be there before anything starts."""

from __future__ import annotations

import os
import stat

from exeat.errors import ConfigError, JailError, StartError
from exeat.jail.cover import Cover
from exeat.jail.devices import is_device
from exeat.jail.folder_watch import FolderWatch
from exeat.jail.inmate import OwnTerminal, Spec
from exeat.jail.mounts import BUNDLE, OWN_CERTIFICATE, View
from exeat.jail.network import GATEWAY_PORT, Sockets
from exeat.jail.warden import Warden
from exeat.run.environment import build_environment, inherited_environment
from exeat.run.gatekeeper import Gatekeeper
from exeat.run.nested import refuse_covers
from exeat.run.own_code import OwnCode
from exeat.run.own_folders import hold_own_folders, is_in_own_folder, what_stands_in_the_way
from exeat.run.preparations import NOTHING, Preparations
from exeat.run.settings import RunSettings
from exeat.run.summary import say


class Cell:
    """A jail ready to be released. `close` takes away what outlives its processes."""

    def __init__(self, kind: str, warden: Warden, sockets: Sockets) -> None:
        self.kind = kind
        self.warden = warden
        self.sockets = sockets
        self.credentials: tuple[str, str] | None = None  # of the gateway, for those who come to it as to a proxy
        hidden = warden.hidden_files
        self.cover = Cover(hidden, warden.namespaces) if hidden else None
        self.folder_watch = FolderWatch(warden.hidden_folders)

    def exposures(self) -> dict[int, JailError]:
        """Descriptors that become readable when something is no longer hidden, and the error to end the run with."""
        found = {}
        if self.cover is not None:
            found[self.cover.descriptor] = JailError(
                "the files with secrets and rules are no longer kept hidden", detail="their guard ended"
            )
        if self.folder_watch.descriptor >= 0:
            found[self.folder_watch.descriptor] = JailError(
                "exeat's own folder was moved or removed while the command ran",
                detail="it cannot be hidden any more, and the command could make another in its place",
            )
        return found

    def close(self) -> None:
        """Nothing of a network namespace is left when its processes are gone."""
        self.folder_watch.close()
        if self.cover is not None:
            self.cover.close()
            self.cover = None


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
        nest=settings.files.nest,
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
    """Hide from the command what decides about it: its rules, its log, exeat's own state."""
    own = hold_own_folders(is_named=settings.folder is not None)
    if is_in_own_folder(working_directory(), own):
        raise ConfigError(
            "the working directory is in exeat's own folder, which is hidden from the command",
            where="exeat run",
            expected="cd to another folder",
        )
    for path in settings.unix:
        if not os.path.isabs(path) or not _is_socket(path):
            raise ConfigError("no such socket", where=f"--unix {path}", expected="the full path of a Unix socket")
        if is_in_own_folder(path, own):
            raise ConfigError("this is exeat's own", where=f"--unix {path}", expected="a socket of another program")
    for path in settings.devices:
        if not is_device(path):
            raise ConfigError("no such device", where=f"--device {path}", expected="the full path of a file in /dev")
    log = (settings.audit, *settings.log_files)
    written = (*dict.fromkeys(log), settings.learn_out, settings.summary_json)
    files = (*written, *settings.policy_files, *settings.secrets_files, *prepared.hidden)
    # What is in a hidden folder is hidden with it.
    hidden = [path for path in files if path and _can_be_hidden(path) and not is_in_own_folder(path, own)]
    for path in prepared.hidden:
        _refuse_second_name(path)
    view = View(list(settings.unix), hidden, own)
    view.obstacles = what_stands_in_the_way(own)
    view.trust = prepared.trust
    view.devices = settings.devices
    code = OwnCode(os.path.expanduser("~"), working_directory())
    view.read_only = [*code.read_only, *(path for path in settings.upstream_ca if os.path.isfile(path))]
    view.still_writable = code.still_writable
    if settings.files.nest:
        shared = (working_directory(), *settings.files.write)
        refuse_covers((*hidden, *own, *view.read_only), shared)
    return view


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
