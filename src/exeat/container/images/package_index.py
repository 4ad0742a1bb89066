"""Where packages come from: the settings that pip has here, made usable inside a build.

They may hold passwords. They go into the first stage of a build as a file and into nothing that stays: not into a
layer of the image, its history or its variables.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping
from configparser import Error as FormatError
from configparser import RawConfigParser
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from exeat.errors import ConfigError

HERE: Final = "/exeat-build"
_SETTINGS: Final = (
    "index-url", "extra-index-url", "find-links", "no-index", "trusted-host", "cert", "proxy", "timeout", "retries",
    "pre", "prefer-binary", "only-binary", "no-binary",
)  # fmt: skip
_INDEXES: Final = ("index-url", "extra-index-url")
_PROXIES: Final = ("http_proxy", "https_proxy", "no_proxy", "all_proxy")
_ARCHIVES: Final = (".whl", ".tar.gz", ".zip")
_MAX_SHIPPED: Final = 1 << 30
_PASSWORD: Final = re.compile(r"(?<=://)[^/\s]+(?=@)")


@dataclass(frozen=True, slots=True)
class PackageIndex:
    """`environment` is what pip gets inside; `files` go along, by their path below the build's folder."""

    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    needs_network: bool = True


def read_package_index(environ: Mapping[str, str] | None = None) -> PackageIndex:
    """What pip would use if it were started here. Raises ConfigError for what cannot work inside a build."""
    environ = os.environ if environ is None else environ
    found = _from_files(environ) | _from_variables(environ)
    has_no_index = _is_yes(found.get("no-index", ""))
    if has_no_index:
        found = {name: value for name, value in found.items() if name not in _INDEXES}
    files: dict[str, bytes] = {}
    if "find-links" in found:
        found["find-links"] = " ".join(_usable_links(found["find-links"].split(), files))
    if "cert" in found:
        files["cert.pem"] = _read(Path(found["cert"]), "cert")
        found["cert"] = f"{HERE}/cert.pem"
    for name in _INDEXES:
        for url in found.get(name, "").split():
            if not url.startswith(("http://", "https://")):
                raise _error(name, "it is not http:// or https://", "for a folder of packages, PIP_FIND_LINKS")
            if not _has_port(url):
                raise _error(name, "its port is not a number", "in a password, %2F for /, %3F for ? and %23 for #")
    is_offline = has_no_index and "://" not in found.get("find-links", "")
    variables = {f"PIP_{name.upper().replace('-', '_')}": value for name, value in found.items()}
    proxies = {name: environ[name] for each in _PROXIES for name in (each, each.upper()) if environ.get(name)}
    return PackageIndex(environment=proxies | variables, files=files, needs_network=not is_offline)


def without_passwords(text: str) -> str:
    """A line of a build's log for a person to read."""
    return _PASSWORD.sub("****", text)


def find_pip(places: Iterable[Path] | None = None) -> bytes | None:
    """A pip to lend to a base image that has none: the one that this Python carries. It runs from its archive."""
    if places is None:
        places = (Path(os.__file__).parent / "ensurepip" / "_bundled", Path("/usr/share/python-wheels"))
    found = sorted(path for place in places for path in place.glob("pip-*.whl"))
    return found[-1].read_bytes() if found else None


def _from_variables(environ: Mapping[str, str]) -> dict[str, str]:
    names = {name: f"PIP_{name.upper().replace('-', '_')}" for name in _SETTINGS}
    return {name: environ[variable] for name, variable in names.items() if environ.get(variable)}


def _from_files(environ: Mapping[str, str]) -> dict[str, str]:
    """pip's own order: the machine's, the user's, the environment's, the named one; `install` over `global`."""
    named = environ.get("PIP_CONFIG_FILE", "")
    if named == os.devnull:
        return {}
    home = Path(environ.get("HOME") or "/nonexistent")
    own = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    places = [Path("/etc/pip.conf"), home / ".pip/pip.conf", own / "pip/pip.conf", Path(sys.prefix) / "pip.conf"]
    found: dict[str, str] = {}
    for path in (*places, *([Path(named)] if named else [])):
        parser = RawConfigParser()
        try:
            parser.read(path, encoding="utf-8")
        except (FormatError, OSError, UnicodeError):
            raise ConfigError("the settings of pip cannot be read", where=str(path), expected="a pip.conf") from None
        for section in ("global", "install"):
            if parser.has_section(section):
                found |= {
                    name.replace("_", "-"): value
                    for name, value in parser.items(section)
                    if name.replace("_", "-") in _SETTINGS and value
                }
    return found


def _usable_links(places: Iterable[str], files: dict[str, bytes]) -> list[str]:
    """Folders of this machine go along; addresses stay what they are."""
    usable = []
    for number, place in enumerate(places):
        parts = urlsplit(place)
        if parts.scheme in ("http", "https"):
            usable.append(place)
            continue
        folder = Path(unquote(parts.path) if parts.scheme == "file" else place).expanduser()
        if not folder.is_dir():
            raise _error("find-links", f"{folder} is not a folder", "a folder of packages, or an address")
        for path in sorted(folder.iterdir()):
            if path.name.endswith(_ARCHIVES) and path.is_file():
                files[f"links/{number}/{path.name}"] = _read(path, "find-links")
        if sum(len(content) for content in files.values()) > _MAX_SHIPPED:
            raise _error("find-links", f"{folder} has more than 1 GiB of packages", "a folder with those needed")
        usable.append(f"{HERE}/links/{number}")
    return usable


def _has_port(url: str) -> bool:
    try:
        return urlsplit(url).port != 0
    except ValueError:
        return False


def _read(path: Path, name: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _error(name, f"{path}: {error.strerror}", "a file that can be read") from None


def _is_yes(value: str) -> bool:
    return value.strip().lower() in ("1", "y", "yes", "t", "true", "on")


def _error(name: str, public: str, expected: str) -> ConfigError:
    return ConfigError(f"pip's setting {name} cannot be used in a build: {public}", expected=expected)
