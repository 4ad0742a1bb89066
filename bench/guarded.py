"""The part of the origin that interception is measured against: HTTPS with a certificate that can be verified.

Every request is checked: nginx answers 403 unless it carries the real value, and a request body goes to a sink
(sink.py) that answers 422 unless it is, byte for byte, the body that was sent with the real value put in.
"""

import base64
import hashlib
import http.client
import itertools
import random
import socket
import ssl
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import trustme

from bench.process import WORK, BenchError, running

# A name, as in real life, and the one name that needs no entry in anybody's DNS.
HOST = "localhost"
PORT = 18453
SINK_PORT = 18454
MIXED_PATH = "/mixed.bin"
UPLOAD_PATH = "/upload"
UPLOAD_BYTES = 50_000_000
TAKEN = b"taken\n"  # what the sink says to a body that is as it should be
# The placeholder has the form that sandbox-runtime makes, which it finds fastest, and the length of the value,
# so that no one has to change a Content-Length. Neither is good for anything.
PLACEHOLDER = "fake_value_3f0c5a1e-7d42-4b8e-9c61-2ab7d09e4f58_bench-0123456789"
VALUE = "sk-bench-Qm7RzK2vXwT9bLc4HdYp8NsUa1GjEf6oVi3ZtWk5Cx0SrBqMlJyDhPg"
HITS = 16  # placeholders in the body
_BLOCK = 1_000_000


def server_block(home: Path) -> str:
    """nginx's part. The body is passed on as it comes in: nothing is kept back on a disk."""
    listen = f"listen 127.0.0.1:{PORT} ssl backlog=4096;"
    if _has_ipv6_loopback():  # `localhost` may mean either
        listen += f" listen [::1]:{PORT} ssl backlog=4096;"
    return f"""server {{
    {listen} root {home}/www; default_type application/octet-stream;
    ssl_certificate {home}/guarded.pem; ssl_certificate_key {home}/guarded.pem;
    if ($http_authorization != "Bearer {VALUE}") {{ return 403; }}
    location {UPLOAD_PATH} {{
      client_max_body_size 0; proxy_http_version 1.1; proxy_request_buffering off;
      proxy_pass http://127.0.0.1:{SINK_PORT};
    }}
  }}"""


def _has_ipv6_loopback() -> bool:
    try:
        with closing(socket.socket(socket.AF_INET6)) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def authority_path(home: Path | None = None) -> Path:
    """The certificate of the authority that the origin's certificate is from; the proxies are to trust it."""
    return (home or WORK / "origin") / "guarded-ca.pem"


def make_guarded_certificate(home: Path) -> None:
    """ECDSA on P-256, which is what trustme makes. The authority's key is not kept."""
    authority, leaf = authority_path(home), home / "guarded.pem"
    if not authority.exists() or not leaf.exists():
        ca = trustme.CA()
        ca.issue_cert(HOST).private_key_and_cert_chain_pem.write_to_path(leaf)
        ca.cert_pem.write_to_path(authority)


def _mixed_bytes() -> Iterator[bytes]:
    """Blocks of what cannot be compressed and of text by turns: a search meets other bytes than zeros."""
    source = random.Random(0)
    while True:
        yield source.randbytes(_BLOCK)
        yield base64.b64encode(source.randbytes(_BLOCK * 3 // 4))[:_BLOCK]


def write_download(size: int) -> None:
    path = WORK / "origin" / "www" / MIXED_PATH[1:]
    if path.exists() and path.stat().st_size == size:
        return
    blocks = _mixed_bytes()
    with path.open("wb") as out:
        left = size
        while left > 0:
            left -= out.write(next(blocks)[:left])


def write_upload() -> Path:
    """A JSON document of UPLOAD_BYTES with placeholders all over it."""
    path = WORK / "upload.json"
    if path.exists() and path.stat().st_size == UPLOAD_BYTES and path.read_bytes().count(PLACEHOLDER.encode()) == HITS:
        return path
    placeholder = PLACEHOLDER.encode()
    filling = UPLOAD_BYTES - 4 - HITS * len(placeholder)
    text = base64.b64encode(random.Random(1).randbytes(filling * 3 // 4 + 3))
    cuts = [at * filling // HITS for at in range(HITS + 1)]
    pieces = (text[begin:end] for begin, end in itertools.pairwise(cuts))
    path.write_bytes(b'["' + b"".join(piece + placeholder for piece in pieces) + b'"]')
    return path


@contextmanager
def open_sink(upload: Path) -> Iterator[None]:
    """Run the sink for the length of the block, and prove first that the checks can fail."""
    digest = hashlib.sha256(upload.read_bytes().replace(PLACEHOLDER.encode(), VALUE.encode())).hexdigest()
    command = [sys.executable, "-m", "bench.sink", str(SINK_PORT), digest, TAKEN.decode().strip()]
    with running(command, SINK_PORT, WORK / "sink.log"):
        _prove_checks(upload.read_bytes())
        yield


def _prove_checks(body: bytes) -> None:
    real = body.replace(PLACEHOLDER.encode(), VALUE.encode())
    for token, sent, expected in (
        (PLACEHOLDER, None, 403), (VALUE, None, 200), (PLACEHOLDER, real, 403), (VALUE, body, 422), (VALUE, real, 200),
    ):  # fmt: skip
        status = _ask(token, sent)
        if status != expected:
            raise BenchError(f"the origin's own check does not work: {status} instead of {expected}")


def _ask(token: str, body: bytes | None) -> int:
    context = ssl.create_default_context(cafile=str(authority_path()))
    with closing(http.client.HTTPSConnection(HOST, PORT, timeout=20, context=context)) as connection:
        headers = {"Authorization": f"Bearer {token}"}
        try:
            connection.request("POST" if body else "GET", UPLOAD_PATH if body else MIXED_PATH, body, headers)
        except OSError:
            pass  # refused before all of the body was sent; the answer is there all the same
        return connection.getresponse().status
