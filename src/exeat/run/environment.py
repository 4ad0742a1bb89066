"""The command's environment: the caller's, without what is exeat's own or leads to things the jail hides."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from exeat.errors import ConfigError

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


def build_environment(
    inherited: Mapping[str, str],
    wanted: Iterable[str],
    *,
    clean: bool,
    proxy_url: str | None,
    own_loopback: bool,
    kept_sockets: Iterable[str] = (),
    placeholders: Mapping[str, str] | None = None,
    trust: Mapping[str, str] | None = None,
    sandbox: str = "",
) -> dict[str, str]:
    """The environment to start the command with. `wanted` are `NAME=VALUE` or `NAME`; `proxy_url` None sets none.

    `sandbox` is the name of the one that it runs in. `placeholders` and `trust` are set whatever else was said: a value
    by the name of a secret must not get in.
    """
    kept = set(kept_sockets)
    values = {name: value for name, value in inherited.items() if _is_passed_on(name, value, clean, kept)}
    for name in (*_PROXY_NAMES, "NO_PROXY"):
        values.pop(name, None)
        values.pop(name.lower(), None)
    if proxy_url is not None:
        proxies = dict.fromkeys(_PROXY_NAMES, proxy_url) | {"NO_PROXY": _OWN_LOOPBACK if own_loopback else ""}
        values |= proxies | {name.lower(): value for name, value in proxies.items()}
    # So that a program, or a prompt, can tell where it is. Nothing of ours takes its settings from these inside.
    values |= {"EXEAT": "1"} | ({"EXEAT_SANDBOX": sandbox} if sandbox else {})
    for item in wanted:
        name, equals, value = item.partition("=")
        if not name or "\0" in item:
            raise ConfigError("not a variable name", where=f"--env {item!r}", expected="NAME=VALUE or NAME")
        if equals:
            values[name] = value
        elif name in inherited:
            values[name] = inherited[name]
        else:
            raise ConfigError("not set here", where=f"--env {name}", expected="NAME=VALUE, or a NAME that is set")
    return {**values, **(trust or {}), **(placeholders or {})}


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
    """Is LC_CTYPE Python's doing (PEP 538: where there is no locale), and not of whoever started us?"""
    try:
        with open("/proc/self/environ", "rb") as file:
            return not any(item.startswith(b"LC_CTYPE=") for item in file.read().split(b"\0"))
    except OSError:
        return False  # no such file: another system, where the command keeps the variable
