"""From a configuration to a command line of exeat. No password and no secret is ever on it: everybody can read it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import exeat
from exeat.embed.configuration import Configuration
from exeat.errors import ConfigError, StartError

OUTER_PROXY = "EXEAT_OUTER_PROXY"  # the variable by which a proxy's URL goes that has a password

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
    if proxy is not None:
        words.append(f"--allow={proxy.rule}")
        if configuration.jail != "env":  # there are no other variables there to be left out
            words.append("--no-proxy-env")
        for name, value in proxy.variables().items():
            is_open = value != proxy.url or not proxy.has_credentials
            words.append(f"--env={name}={value}" if is_open else f"--env={name}")
    for option, value in (
        ("--audit", configuration.audit_log),
        ("--name", configuration.name),
        ("--secrets", configuration.secrets),
        ("--upstream-ca", configuration.upstream_ca),
    ):
        if value:
            words.append(f"{option}={value}")
    return words
