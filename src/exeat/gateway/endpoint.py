"""How a client is told where a gateway listens: as a proxy URL, and as variables."""

from __future__ import annotations

from exeat.gateway.state import Credentials


def proxy_url(host: str, port: int, credentials: Credentials | None = None) -> str:
    """For a client that takes a proxy URL. With credentials it is not fit for a log."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    login = ""
    if credentials is not None:
        from urllib.parse import quote  # noqa: PLC0415 - not on the way of a run

        login = f"{quote(credentials.user, safe='')}:{quote(credentials.password, safe='')}@"
    return f"http://{login}[{host}]:{port}" if ":" in host else f"http://{login}{host}:{port}"


def proxy_variables(url: str) -> dict[str, str]:
    """Proxy variables for a child, in both cases. Empty NO_PROXY: nothing goes round the gateway."""
    values = {"HTTP_PROXY": url, "HTTPS_PROXY": url, "ALL_PROXY": url, "NO_PROXY": ""}
    return values | {name.lower(): value for name, value in values.items()}
