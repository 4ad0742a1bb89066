"""From a configuration to a command line of exeat. No password and no secret is ever on it: every user can read it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import exeat
from exeat.embed.configuration import Configuration
from exeat.errors import ConfigError, StartError
from exeat.file_policy import FileSettings
from exeat.sandbox.home import state_home

OUTER_PROXY = "EXEAT_OUTER_PROXY"  # the variable by which a proxy's URL goes that has a password

# Where exeat finds its files, the programs of secrets, whom it trusts, and how much of a log stays. Not for those to
# choose who choose the environment of a command. No value of these is a secret.
_OWN = (
    "HOME", "XDG_STATE_HOME", "PATH", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR", "EXEAT_AUDIT_SIZE", "EXEAT_AUDIT_KEEP",
)  # fmt: skip
_LAUNCHER = str(Path(exeat.__file__).absolute().parent / "cli" / "embedded.py")


def check_command(argv: Sequence[str | os.PathLike[str]]) -> list[str]:
    """The command as texts. Raises ConfigError if it is none."""
    if isinstance(argv, str) or not isinstance(argv, (list, tuple)):
        raise ConfigError("not a command", where="argv", expected='a list, such as ["curl", "https://example.com/"]')
    texts: list[object] = [os.fspath(each) if isinstance(each, os.PathLike) else each for each in argv]
    command = [each for each in texts if isinstance(each, str) and "\0" not in each]
    if len(command) < len(texts) or not command or not command[0]:
        raise ConfigError("not a command", where="argv", expected="a list of strings without NUL; the program first")
    return command


def check_environ(env: Mapping[str, str]) -> bytes:
    """A command's environment as /proc has it. Raises ConfigError if it is none."""
    expected = "a mapping of strings without NUL; no name is empty or has = in it"
    try:
        items = [(os.fsencode(name), os.fsencode(value)) for name, value in env.items()]
    except (TypeError, AttributeError, UnicodeEncodeError):
        raise ConfigError("not an environment", where="env", expected=expected) from None
    for name, value in items:
        if not name or b"=" in name or b"\0" in name + value:
            raise ConfigError("not an environment", where="env", expected=expected)
    return b"".join(b"%b=%b\0" % item for item in items)


def find_state(configuration: Configuration) -> str:
    """Where exeat keeps its state; "" if that is nowhere, and nothing is to be kept. Raises ConfigError."""
    try:
        return state_home()
    except ConfigError:
        if configuration.enabled and (configuration.name or os.environ.get("EXEAT_HOME")):
            raise
        return ""


def own_options(state: str, *, wrapped: bool = False) -> list[str]:
    """For the launcher: what its own environment is to be, whatever it is started with.

    It has that of this process, and then nothing but the state folder is said. If it is `wrapped`, its environment is
    chosen by the caller, for the command.
    """
    values = {name: os.environ.get(name) for name in _OWN} if wrapped else {}
    if state:
        values["EXEAT_HOME"] = state
    elif wrapped:
        values["EXEAT_HOME"] = None
    words = [f"--own={name}" if value is None else f"--own={name}={value}" for name, value in values.items()]
    return [*words, "--wrapped"] if wrapped else words


def launcher(*options: str) -> list[str]:
    """Isolated (-I): no module is taken from the working directory or from where a variable points."""
    if not sys.executable:
        raise StartError("cannot find the Python that runs this program", detail="sys.executable is empty")
    return [sys.executable, "-I", _LAUNCHER, *options]


def run_options(configuration: Configuration) -> list[str]:
    """What comes between the launcher and the command."""
    proxy = configuration.proxy
    words = ["--outer-proxy"] if proxy is not None and proxy.has_credentials else []
    words += ["run", f"--jail={configuration.jail}"]
    words += [f"--allow={rule}" for rule in configuration.allowed]
    words += [f"--deny={rule}" for rule in configuration.denied]
    words += [f"--add-host={name}:{address}" for name, address in configuration.hosts]
    words += [f"--private-network={network}" for network in configuration.private_networks]
    if proxy is not None:
        words.append(f"--allow={proxy.rule}")
        if configuration.jail != "env":  # there are no other variables there to be left out
            words.append("--no-proxy-env")
        for name, value in proxy.variables().items():
            is_open = value != proxy.url or not proxy.has_credentials
            words.append(f"--env={name}={value}" if is_open else f"--env={name}")
    words += _file_options(configuration.files)
    if configuration.name:
        words.append("--new")  # a program means it: there is no question
    for option, value in (
        ("--audit", configuration.audit_log),
        ("--name", configuration.name),
        ("--secrets", configuration.secrets),
        ("--upstream-ca", configuration.upstream_ca),
    ):
        if value:
            words.append(f"{option}={value}")
    return words


def _file_options(settings: FileSettings) -> list[str]:
    words = [] if settings.mode is None else [f"--files={settings.mode}"]
    for option, paths in (
        ("--write", settings.write),
        ("--read-only", settings.read_only),
        ("--hide", settings.hide),
        ("--show", settings.show),
    ):
        words += [f"{option}={path}" for path in paths]
    if settings.layer_bytes is not None:
        words.append(f"--layer-size={settings.layer_bytes}")
    return [*words, "--nest"] if settings.nest else words
