"""The rows `intercept-*`: proxies that look into TLS and put a value in place of a placeholder."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from bench.cpu import cpu_s
from bench.guarded import (
    HOST,
    MIXED_PATH,
    PLACEHOLDER,
    PORT,
    TAKEN,
    UPLOAD_PATH,
    open_sink,
    write_download,
    write_upload,
)
from bench.install import say
from bench.interceptors import InterceptingExeat
from bench.load import Load, Sample, Way, measure
from bench.origin import PLAIN_PORT, Site
from bench.peers import Peer, open_peer
from bench.process import BenchError
from bench.rows import Effort, Results, Row, rotated

GUARDED = Site(HOST, PLAIN_PORT, PORT)
KEPT = Row("intercept-kept", "Intercepted TLS, connections kept", "tunnel")
NEW = Row("intercept-new", "Intercepted TLS, CONNECT, full handshake and one request, new each time", "tunnel-full")
BULK = Row("intercept-bulk", "Intercepted TLS, a large download over one connection", "tunnel", connections=1)
UPLOAD = Row("intercept-upload", "Intercepted TLS, 50 MB uploads with values put in", "tunnel", connections=1)
INTERCEPT_ROWS = (KEPT, NEW, BULK, UPLOAD)
SECRETS_BULK = replace(BULK, name="secrets-bulk")
SECRET_COUNTS = (1, 10, 100)
# A warm-up of one request: certificates are made at the first.
_ONE_REQUEST_S = 0.01


def download_bytes(effort: Effort) -> int:
    """Less than of a file of zeros: this one takes its room on the disk."""
    return effort.bulk_bytes // 5


def load_for(row: Row, effort: Effort, upload: str) -> Load:
    load = replace(effort.load(row), token=PLACEHOLDER)
    if row in (BULK, SECRETS_BULK):
        return replace(load, warm_s=_ONE_REQUEST_S, path=MIXED_PATH, length=download_bytes(effort))
    if row == UPLOAD:
        return replace(load, warm_s=_ONE_REQUEST_S, requests=0, path=UPLOAD_PATH, length=len(TAKEN), body=upload)
    return load


def _through(peer: Peer, load: Load) -> Sample:
    with open_peer(peer, tunnels=True) as (port, pid):
        return measure(load, Way(f"127.0.0.1:{port}", GUARDED), lambda _: cpu_s(pid))


def measure_intercept(rows: Sequence[Row], peers: Sequence[Peer], effort: Effort, results: Results) -> None:
    """All peers take turns in every round, each with a fresh process, alone. The origin checks every request."""
    say("interception")
    try:
        write_download(download_bytes(effort))
        upload = write_upload()
        with open_sink(upload):
            for number in range(effort.rounds):
                for row in rows:
                    for peer in rotated(peers, number):
                        results.take(row.name, peer.name, partial(_through, peer, load_for(row, effort, str(upload))))
    except BenchError as error:
        results.failures |= {(row.name, peer.name): str(error) for row in rows for peer in peers}


def measure_secrets(program: str | None, effort: Effort, results: Results) -> None:
    """The same download with ever more secrets to look for, in turns."""
    say("cost by number of secrets")
    load = load_for(SECRETS_BULK, effort, "")
    write_download(load.length)
    for _ in range(effort.rounds):
        for count in SECRET_COUNTS:
            peer = InterceptingExeat(program, count)
            results.take(SECRETS_BULK.name, str(count), partial(_through, peer, load))


def shown_command(row: Row, effort: Effort) -> str:
    """The load behind the figures of a row, for the report: without paths."""
    load = load_for(row, effort, "upload.json")
    shown = replace(load, token="PLACEHOLDER")
    return shlex.join(Way("127.0.0.1:PORT", GUARDED).command(shown, "load"))
