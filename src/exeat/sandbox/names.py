"""Names of sandboxes. A name becomes a folder, so it can never lead out of the folder that holds them all."""

from __future__ import annotations

import re

from exeat.errors import ConfigError
from exeat.policy.host import shown

DEFAULT_NAME = "default"

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")


def check_name(text: str, where: str = "--name") -> str:
    """The name itself, if it is one. `fullmatch`: with `$`, a name could end in a newline."""
    if not _NAME.fullmatch(text):
        raise ConfigError(
            f"{shown(text)} is not a name for a sandbox",
            where=where,
            expected="1 to 40 of a-z, 0-9 and -, and the first is not a -: my-project",
        )
    return text


def is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None
