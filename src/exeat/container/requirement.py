"""Packages that a sandbox needs, as the lines of a requirements file that pip reads.

A line of such a file can do more than name a package: options change the index, `-r` and `-e` read files. Only
requirements are taken, with their hashes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final
from urllib.parse import urlsplit

from exeat.errors import ConfigError

_EXPECTED: Final = "such as 'requests', 'requests>=2.31,<3', 'requests==2.32.3 --hash=sha256:...'"
_NAME: Final = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_VERSION: Final = r"(?:~=|===?|!=|<=?|>=?)\s*[A-Za-z0-9.*+!_-]+"
_REQUIREMENT: Final = re.compile(
    rf"(?P<name>{_NAME})\s*"
    rf"(?:\[\s*{_NAME}(?:\s*,\s*{_NAME})*\s*\]\s*)?"
    rf"(?:@\s*(?P<url>[^\s;]+)|(?:{_VERSION}(?:\s*,\s*{_VERSION})*)?)"
    r"(?:\s*;\s*(?P<marker>(?:[A-Za-z0-9_.<>=!~'\"(),+]| (?!-)|(?<! )-)+?))?"  # " -" begins an option
)
_HASHES: Final = re.compile(r"(?P<what>.*?)(?P<hashes>(?:\s+--hash=[^\s]+)*)")
_HASH: Final = re.compile(r"--hash=(sha256:[0-9a-f]{64}|sha384:[0-9a-f]{96}|sha512:[0-9a-f]{128})")


def check_requirement(text: str) -> str:
    """The requirement in one form. Raises ConfigError, with what is wrong with it."""
    if not text.isprintable() or "#" in text or "$" in text or "\\" in text:
        raise _error(text, "it has more than one requirement")
    parts = _HASHES.fullmatch(text.strip())
    assert parts is not None
    what, hashes = parts["what"], parts["hashes"].split()
    for each in hashes:
        if not _HASH.fullmatch(each):
            raise _error(text, f"{each} is not a hash of sha256, sha384 or sha512")
    found = _REQUIREMENT.fullmatch(what)
    if found is None:
        raise _error(text, "it is not a requirement")
    if found["url"] is not None:
        _check_url(text, found["url"])
    if _canonical(found["name"]) == "pip":
        raise _error(text, "pip does not stay in the image: nothing can be installed in a sandbox")
    if hashes and found["url"] is None and not re.search(r"===?\s*[^*,;]+(?:;|$)", what):
        raise _error(text, "a hash belongs to one version: pin it with ==")
    return " ".join([what, *hashes])


def join_requirements(groups: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """All that a sandbox installs, sorted, each once. Raises ConfigError where only some have hashes."""
    found = sorted({each for group in groups for each in group})
    bare = [each for each in found if "--hash=" not in each]
    if bare and len(bare) < len(found):
        raise ConfigError(
            f"{bare[0]!r} has no hash, but other packages of the sandbox do", expected="hashes for all, or for none"
        )
    return tuple(found)


def _check_url(text: str, url: str) -> None:
    try:
        parts = urlsplit(url)
        has_credentials = parts.username is not None
    except ValueError:
        raise _error(text, "its address is not a URL") from None
    if parts.scheme != "https" or not parts.hostname:
        raise _error(text, "its address is not https://HOST/PATH")
    if has_credentials:
        raise _error(url.rpartition("@")[2], "a password in it would stay in the image: use the settings of pip")


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _error(text: str, public: str) -> ConfigError:
    return ConfigError(f"the dependency {text!r} cannot be used: {public}", expected=_EXPECTED)
