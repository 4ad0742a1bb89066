"""The jail for macOS: a Seatbelt profile under which the gateway's port is the only network there is.

The profile is text in the sandbox's own language, where the last rule that matches decides. Files are not its
business, except exeat's own. It is built from values, which must never be able to end the string they are put in.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable

from exeat.errors import ConfigError, JailError
from exeat.jail.bodies.child import ChildJail
from exeat.jail.jail import Built, Examination, Spec

SANDBOX_EXEC = "/usr/bin/sandbox-exec"

# Services that ordinary programs ask for: accounts, logging, preferences, notifications, certificates, fonts, power.
# All others stay out of reach, since some of them go to the network, or start programs, for whoever asks: names
# (mDNSResponder), downloads (nsurlsessiond), opening URLs (launchservicesd), jobs (launchd).
_SERVICES = (
    "com.apple.FontObjectsServer",
    "com.apple.PowerManagement.control",
    "com.apple.SecurityServer",
    "com.apple.bsd.dirhelper",
    "com.apple.cfprefsd.agent",
    "com.apple.cfprefsd.daemon",
    "com.apple.diagnosticd",
    "com.apple.fonts",
    "com.apple.logd",
    "com.apple.logd.events",
    "com.apple.securityd.xpc",
    "com.apple.system.DirectoryService.libinfo_v1",
    "com.apple.system.DirectoryService.membership_v1",
    "com.apple.system.logger",
    "com.apple.system.notification_center",
    "com.apple.system.opendirectoryd.libinfo",
    "com.apple.system.opendirectoryd.membership",
)
# Refused by name as well, so that no later addition to the list above lets them in.
_NAME_SERVICES = ("com.apple.dnssd.service", "com.apple.mDNSResponder", "com.apple.mDNSResponderHelper")


def build_profile(
    port: int, *, unix: Iterable[str] = (), hidden_files: Iterable[str] = (), hidden_folders: Iterable[str] = ()
) -> str:
    """The profile for a gateway on this port of loopback. Paths are to be without symbolic links.

    `unix` are sockets that stay reachable; the hidden ones are exeat's own. Raises ValueError for what cannot be said.
    """
    if not 0 < port < 65_536:
        raise ValueError(f"no port: {port}")
    hidden_files, hidden_folders = list(hidden_files), list(hidden_folders)
    lines = [
        "(version 1)",
        "(allow default)",
        "(deny network*)",
        f'(allow network-outbound (remote tcp "localhost:{port}"))',
        *(f"(allow network-outbound (literal {quote(path)}))" for path in unix),
        "(deny mach-lookup)",
        "(allow mach-lookup",
        *(f"  (global-name {quote(name)})" for name in _SERVICES),
        ")",
        "(deny mach-lookup",
        *(f"  (global-name {quote(name)})" for name in _NAME_SERVICES),
        ")",
        "(deny appleevent-send)",
        "(deny job-creation)",
        "(deny lsopen)",
        *(f"(deny file-read* file-write* (literal {quote(path)}))" for path in hidden_files),
        *(f"(deny file-read* file-write* (subpath {quote(path)}))" for path in hidden_folders),
        # Rules go by path: what is moved has another one. To move a folder is to unlink it.
        *(f"(deny file-write-unlink (literal {quote(path)}))" for path in _above(*hidden_files, *hidden_folders)),
    ]
    return "\n".join(lines) + "\n"


def _above(*paths: str) -> list[str]:
    """All folders on the way to these, each once."""
    found: dict[str, None] = {}
    for path in paths:
        while (path := os.path.dirname(path)) not in ("/", ""):
            found[path] = None
    return list(found)


def quote(value: str) -> str:
    """A string of the profile's language. Only characters that are plain in it stay as they are."""
    if "\0" in value:
        raise ValueError("a path with a NUL byte")
    if any(char < " " or char == "\x7f" for char in value):
        raise ValueError(f"a path with a control character: {value!r}")
    if any("\ud800" <= char <= "\udfff" for char in value):
        raise ValueError(f"a path that is not UTF-8: {value!r}")
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def wrap_command(profile: str, argv: list[str]) -> list[str]:
    """The command line that runs `argv` under a profile."""
    return [SANDBOX_EXEC, "-p", profile, *argv]


class SeatbeltJail(ChildJail):
    def build(self, spec: Spec) -> Built:
        # sandbox-exec has an exit status of its own for what it cannot start: find out before.
        program = spec.argv[0]
        found = (
            program if os.path.dirname(program) else shutil.which(program, path=spec.variables.inherited.get("PATH"))
        )
        if found is None or not os.path.exists(found):
            self.give_up(errno.ENOENT)
        elif os.path.isdir(found) or not os.access(found, os.X_OK):
            self.give_up(errno.EACCES)
        return super().build(spec)

    def wrap(self, spec: Spec, port: int) -> list[str]:
        folders = [path for path in spec.hidden if os.path.isdir(path)]
        files = [path for path in spec.hidden if path not in folders]
        try:
            profile = build_profile(
                port,
                unix=map(os.path.realpath, spec.unix),
                hidden_files=map(os.path.realpath, files),
                hidden_folders=map(os.path.realpath, folders),
            )
        except ValueError as error:
            raise ConfigError(str(error), where="--unix, --audit or --policy", expected="a plain path") from None
        return wrap_command(profile, spec.argv)


def check_here() -> None:
    """Raises JailError where there is no Seatbelt."""
    if not os.access(SANDBOX_EXEC, os.X_OK):
        raise JailError("the seatbelt jail needs sandbox-exec", detail=f"there is no {SANDBOX_EXEC}")


def open_jail() -> SeatbeltJail:
    check_here()
    return SeatbeltJail()


def examine() -> Examination:
    open_jail()
    return Examination(True, "a Seatbelt profile: the gateway's port is all the network there is")
