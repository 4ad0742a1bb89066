"""The command's environment: the caller's, without exeat's own variables and those that lead to hidden things."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from exeat.errors import ConfigError
from exeat.values import Value

_KEPT_WHEN_CLEAN = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "COLORTERM", "LANG", "LANGUAGE", "TZ", "TMPDIR", "PWD",
    "XDG_RUNTIME_DIR",
)  # fmt: skip
# exeat's own settings: the program has no business with its own rules, or with secrets to come.
_OURS = ("PROXY_ALLOWLIST", "PROXY_PORT")
# Where services of the host listen, or which descriptors were passed. Dead inside, so better not there.
_TO_HIDDEN_SOCKETS = (
    "SSH_AUTH_SOCK", "SSH_AGENT_PID", "DBUS_SESSION_BUS_ADDRESS", "DBUS_SYSTEM_BUS_ADDRESS", "GPG_AGENT_INFO",
    "WAYLAND_DISPLAY", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "NOTIFY_SOCKET", "GNOME_KEYRING_CONTROL",
    "WAYLAND_SOCKET", "NODE_CHANNEL_FD", "NODE_CHANNEL_SERIALIZATION_MODE",
)  # fmt: skip
_PROXY_NAMES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
# The jail's own loopback is not the gateway's business.
_OWN_LOOPBACK = "localhost,127.0.0.1,::1"


class Variables(Value):
    """What the command's environment is made of; its jail adds what leads to the gateway.

    `placeholders`, and certificates to trust, are set whatever else was said: a value by the name of a secret must not
    get in.
    """

    inherited: Mapping[str, str]
    wanted: tuple[str, ...] = ()  # NAME=VALUE, or NAME
    clean: bool = False
    names_proxy: bool = True
    placeholders: Mapping[str, str] = {}
    sandbox: str = ""  # the name of the one that the command runs in
    passes_on: bool = True  # what was inherited is the command's, too; otherwise only what is wanted of it

    def build(
        self,
        *,
        proxy_url: str | None,
        own_loopback: bool,
        kept_sockets: Iterable[str] = (),
        trust: Mapping[str, str] | None = None,
    ) -> dict[str, str]:
        """`proxy_url` None: the jail leads everything to the gateway anyway. Raises ConfigError."""
        kept = set(kept_sockets)
        inherited = self.inherited if self.passes_on else {}
        values = {name: text for name, text in inherited.items() if _is_passed_on(name, text, self.clean, kept)}
        for name in (*_PROXY_NAMES, "NO_PROXY"):
            values.pop(name, None)
            values.pop(name.lower(), None)
        if proxy_url is not None and self.names_proxy:
            proxies = dict.fromkeys(_PROXY_NAMES, proxy_url) | {"NO_PROXY": _OWN_LOOPBACK if own_loopback else ""}
            values |= proxies | {name.lower(): value for name, value in proxies.items()}
        # So that a program, or a prompt, can tell where it is. Nothing of ours takes its settings from these inside.
        values |= {"EXEAT": "1"} | ({"EXEAT_SANDBOX": self.sandbox} if self.sandbox else {})
        for item in self.wanted:
            name, equals, value = item.partition("=")
            if not name or "\0" in item:
                raise ConfigError("not a variable name", where=f"--env {item!r}", expected="NAME=VALUE or NAME")
            if equals:
                values[name] = value
            elif name in self.inherited:
                values[name] = self.inherited[name]
            else:
                raise ConfigError("not set here", where=f"--env {name}", expected="NAME=VALUE, or a NAME that is set")
        return {**values, **(trust or {}), **self.placeholders}


def _is_passed_on(name: str, value: str, clean: bool, kept_sockets: set[str]) -> bool:
    if name in _OURS or name.startswith("EXEAT_"):
        return False
    if name in _TO_HIDDEN_SOCKETS:
        return not clean and value in kept_sockets
    return not clean or name in _KEPT_WHEN_CLEAN or name.startswith("LC_")


def inherited_environment(given: Mapping[bytes, bytes] | None) -> dict[str, str]:
    """What the command's environment is made from: what was given for it, else the caller's."""
    return caller_environment() if given is None else decoded(given)


def decoded(environ: Mapping[bytes, bytes]) -> dict[str, str]:
    """As `os.environ` has it."""
    return {os.fsdecode(name): os.fsdecode(value) for name, value in environ.items()}


def caller_environment() -> dict[str, str]:
    """The environment as we were started with it."""
    found = dict(os.environ)
    if found.get("LC_CTYPE") == "C.UTF-8" and sets_locale_itself():
        del found["LC_CTYPE"]
    return found


def sets_locale_itself() -> bool:
    """Is LC_CTYPE Python's doing (PEP 538: where there is no locale), and not the caller's?"""
    try:
        with open("/proc/self/environ", "rb") as file:
            return not any(item.startswith(b"LC_CTYPE=") for item in file.read().split(b"\0"))
    except OSError:
        return False  # no such file: another system, where the command keeps the variable
