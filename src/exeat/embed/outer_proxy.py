"""A proxy of somebody else's, which decides in place of exeat's gateway: its address, and the rule that opens it."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import urlsplit

from exeat.errors import ConfigError, HostError
from exeat.policy.host import Address, configured_host

_DEFAULT_PORTS = {"http": 80, "https": 443, "socks5": 1080, "socks5h": 1080}
_EXPECTED = "such as http://127.0.0.1:8888; http, https, socks5 or socks5h, without a path"
_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
# The jail's own loopback is nobody's business.
_OWN_LOOPBACK = "localhost,127.0.0.1,::1"


@dataclass(frozen=True, slots=True)
class OuterProxy:
    """`url` may hold a password: it is in no `repr`, in no error, and on no command line."""

    url: str = field(repr=False)
    has_credentials: bool
    host: str  # canonical, without brackets
    rule: str  # the only one that the command's jail gets

    def variables(self) -> dict[str, str]:
        """What tells programs of it, in both cases."""
        values = dict.fromkeys(_VARIABLES, self.url) | {"NO_PROXY": _OWN_LOOPBACK}
        return values | {name.lower(): value for name, value in values.items()}


def parse_outer_proxy(text: str, where: str) -> OuterProxy:
    """Read a proxy's URL. Raises ConfigError, which never shows the text."""
    try:
        parts = urlsplit(text)
        port = parts.port or _DEFAULT_PORTS.get(parts.scheme, 0)
        named = parts.hostname or ""
    except ValueError:
        raise ConfigError("not a URL", where=where, expected=_EXPECTED) from None
    if parts.scheme not in _DEFAULT_PORTS or not named or any(not char.isprintable() or char == " " for char in text):
        raise ConfigError("not the URL of a proxy", where=where, expected=_EXPECTED)
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ConfigError("a proxy has no path", where=where, expected=_EXPECTED)
    try:
        # In the jail localhost is the jail's own; an address that a rule lists is the host's.
        host = configured_host("127.0.0.1" if named == "localhost" else named)
    except HostError as error:
        raise ConfigError(error.public, where=where, expected=_EXPECTED) from None
    credentials = parts.netloc.rpartition("@")[0]
    place = f"{host.authority}:{port}"
    # Whoever writes a proxy down means the one that the name leads to, and most are inside.
    private = "" if isinstance(host, Address) else " private"
    return OuterProxy(
        url=f"{parts.scheme}://{credentials}{'@' if credentials else ''}{place}",
        has_credentials=bool(credentials),
        host=str(host),
        rule=f"{place}{private} proxy",
    )
