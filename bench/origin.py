"""The origin that every proxy is measured against: an nginx of our own, never the system's service."""

import os
import pwd
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.guarded import make_guarded_certificate, server_block
from bench.install import need_program
from bench.process import WORK, BenchError, output_of, running

PLAIN_PORT = 18080
TLS_PORT = 18443
WEB_HOST, WEB_PORTS = "127.77.0.1", (80, 443)  # an address of our own: 127.0.0.1 may have a server there already
SMALL_BYTES = 612  # the size of nginx's own welcome page, which older comparisons use
SMALL_PATH = "/small.txt"
UNIQUE_PATH = "/unique.txt"  # the same, with a header line that no other response has
BULK_PATH = "/bulk.bin"


@dataclass(frozen=True, slots=True)
class Site:
    """The origin by one of its names."""

    host: str
    plain_port: int
    tls_port: int

    def place(self, *, over_tls: bool) -> str:
        return f"{self.host}:{self.tls_port if over_tls else self.plain_port}"


LOCAL = Site("127.0.0.1", PLAIN_PORT, TLS_PORT)

CONFIG = """
daemon off; worker_processes 1; pid {home}/nginx.pid; error_log {home}/error.log warn; {user}
events {{ worker_connections 8192; }}
http {{
  access_log off; sendfile on; tcp_nopush on; tcp_nodelay on;
  keepalive_requests 1000000000; keepalive_timeout 600s;
  open_file_cache max=16 inactive=600s;
  client_body_temp_path {home}/t1; proxy_temp_path {home}/t2; fastcgi_temp_path {home}/t3;
  uwsgi_temp_path {home}/t4; scgi_temp_path {home}/t5;
  ssl_certificate {home}/cert.pem; ssl_certificate_key {home}/key.pem;
  ssl_protocols TLSv1.3; ssl_session_tickets on;
  server {{
    listen 127.0.0.1:{plain} backlog=4096; listen 127.0.0.1:{tls} ssl backlog=4096;
    {web} root {home}/www;
    location = {unique} {{ try_files {small} =404; add_header X-Request-Id $request_id; }}
  }}
  {guarded}
}}
"""


def version() -> str:
    return output_of(need_program("nginx", "nginx-light"), "-v").rpartition("/")[2]


def _make_certificate(home: Path) -> None:
    """Self-signed and ECDSA, which keeps the origin cheap; the client does not verify it."""
    openssl = need_program("openssl", "openssl")
    key, certificate = home / "key.pem", home / "cert.pem"
    if not certificate.exists():
        said = output_of(
            openssl, "req", "-x509", "-nodes", "-days", "3650", "-subj", "/CN=127.0.0.1",
            "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-keyout", str(key), "-out", str(certificate),
        )  # fmt: skip
        if not certificate.exists():
            raise BenchError(f"openssl made no certificate: {said[-200:]}")


def _may_bind_web() -> bool:
    """Ports below 1024 are for root on most machines, and may be taken for all addresses."""
    try:
        for port in WEB_PORTS:
            with closing(socket.socket()) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((WEB_HOST, port))
    except OSError:
        return False
    return True


@contextmanager
def open_origin(bulk_bytes: int) -> Iterator[bool]:
    """Run the origin for the length of the block, with a sparse file of *bulk_bytes* to download.

    Yields whether it is on the web's own ports too, at WEB_HOST.
    """
    home = WORK / "origin"
    (home / "www").mkdir(parents=True, exist_ok=True)
    _make_certificate(home)
    make_guarded_certificate(home)
    (home / "www" / SMALL_PATH[1:]).write_bytes(b"x" * (SMALL_BYTES - 1) + b"\n")
    with (home / "www" / BULK_PATH[1:]).open("wb") as bulk:
        bulk.truncate(bulk_bytes)
    # As root, nginx would switch to a user who may not be able to read this directory.
    user = f"user {pwd.getpwuid(0).pw_name};" if os.geteuid() == 0 else ""
    config = home / "nginx.conf"
    web = _may_bind_web()
    listen = "listen {0}:{1} backlog=4096; listen {0}:{2} ssl backlog=4096;".format(WEB_HOST, *WEB_PORTS) if web else ""
    guarded = server_block(home)
    config.write_text(
        CONFIG.format(
            unique=UNIQUE_PATH,
            small=SMALL_PATH,
            home=home,
            user=user,
            plain=PLAIN_PORT,
            tls=TLS_PORT,
            web=listen,
            guarded=guarded,
        )
    )
    nginx = need_program("nginx", "nginx-light")
    with running([nginx, "-p", str(home), "-c", str(config)], PLAIN_PORT, home / "start.log"):
        yield web
