"""Samples of secrets, and of messages that carry them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from exeat.policy import Name, Source, parse_rule
from exeat.secrets.model import DEFAULT_WHERE, Injection, Secret, SecretSpec, ValueSource, Where
from exeat.secrets.stream.codings import BodyFilter
from exeat.secrets.treatment import Treatment, treat_request
from exeat.secrets.vault import Vault
from exeat.wire.http1 import RequestHead, ResponseHead, parse_request_head, parse_response_head

VALUE = b"real+Value/0123=4567&89"
HOST = "api.good.test"


def make_secret(
    name: str = "TOKEN",
    *,
    value: bytes = VALUE,
    hosts: Sequence[str] = (f"{HOST}:443",),
    placeholder: bytes = b"",
    inject: Injection | None = None,
    where: Iterable[Where] = DEFAULT_WHERE,
    refuse_wrong_host: bool = True,
    aws_key_id: str = "",
) -> Secret:
    source = Source("secrets.toml", 1)
    spec = SecretSpec(
        name=name,
        source=ValueSource(env=name),
        hosts=tuple(parse_rule(host, source) for host in hosts),
        written=source,
        inject=inject,
        where=frozenset(where),
        refuse_wrong_host=refuse_wrong_host,
        aws_key_id=aws_key_id,
    )
    return Secret(spec, placeholder or b"exeat_" + name.encode() + b"0123456789abcdefghijklmnop", value)


def request(*fields: bytes, method: bytes = b"GET", body: bytes | None = None) -> RequestHead:
    lines = [method + b" / HTTP/1.1", b"Host: api.good.test", *fields]
    if body is not None:
        lines.append(b"Content-Length: %d" % len(body))
    return parse_request_head(b"\r\n".join(lines) + b"\r\n\r\n")


def response(*fields: bytes, line: bytes = b"HTTP/1.1 200 OK", to_head: bool = False) -> ResponseHead:
    return parse_response_head(b"\r\n".join([line, *fields]) + b"\r\n\r\n", to_head=to_head)


def treat(
    vault: Vault, head: RequestHead, path: bytes = b"/", *, host: str = HOST, port: int = 443, secure: bool = True
) -> Treatment:
    """The treatment of a request that needs one and is not stopped."""
    bound = vault.bound_to(Name(host), port)
    treated = treat_request(vault, bound, head, path, secure=secure, authority=host.encode())
    assert isinstance(treated, Treatment), treated
    return treated


def through(body: BodyFilter | None, pieces: Sequence[bytes]) -> bytes:
    """What comes out of a filter."""
    assert body is not None
    return b"".join([*(body.feed(piece) for piece in pieces), body.finish()])


def lines_of(passed: bytes) -> list[bytes]:
    return passed.split(b"\r\n")[1:]
