"""The part of the Markdown page that is about TLS interception."""

from collections.abc import Iterator

from bench.figures import figures
from bench.guarded import HITS
from bench.intercept import BULK, INTERCEPT_ROWS, KEPT, NEW, SECRET_COUNTS, SECRETS_BULK, shown_command
from bench.peers import Exeat, Mitmproxy, SandboxRuntime
from bench.rows import Effort, Results
from bench.tables import against, row_table

PEERS = (Exeat.name, Mitmproxy.name, SandboxRuntime.name)
LIMITS = (
    (KEPT, Mitmproxy.name, 0.15, "CPU, intercepted, connections kept"),
    (KEPT, SandboxRuntime.name, 0.7, "CPU, intercepted, connections kept"),
    (NEW, Mitmproxy.name, 0.35, "CPU, intercepted, new connections"),
    (NEW, SandboxRuntime.name, 0.35, "CPU, intercepted, new connections"),
    (BULK, Mitmproxy.name, 0.4, "CPU per GB, intercepted, bulk download"),
)

INTERCEPT_NOTES = f"""\
All of them end the client's TLS with a certificate of their own, verify the origin's, and put one value in place of
one placeholder in `Authorization: Bearer PLACEHOLDER`, for one host. The origin answers 403 to a request without the
value, so every request that is counted had it. An upload is 50 MB of JSON with {HITS} placeholders in it, and the
origin answers 422 unless it gets, byte for byte, what it should. HTTP/1.1 on both sides.

- exeat searches every response for the value and takes it out. mitmproxy and sandbox-runtime do not look at responses.
- mitmproxy has an addon of a screenful (bench/mitmproxy_addon.py) and streams bodies of more than 1 MB
  (`stream_large_bodies`). sandbox-runtime has the hooks that it sets itself for `network.tlsTerminate` and a masked
  credential.
- The placeholder has the form and the length that sandbox-runtime would give it, so that no one has to change
  Content-Length.
- exeat uses a connection to the origin again for another client, also in the row of new connections. mitmproxy opens
  one for each client, sandbox-runtime two, of which the first only finds out the address.
- Connections are new with a full TLS handshake: many clients are short-lived programs with no session to resume.
- Each makes the kind of certificate that it makes by default: exeat ECDSA on P-256, the others RSA with 2,048 bits.
- The download is of bytes that do not repeat, text and noise by turns. The first download and the first upload are
  not counted.
- The client does not verify the proxies' certificates."""


def intercept_targets(results: Results) -> Iterator[str]:
    for row, peer, limit, what in LIMITS:
        yield against(results, row.name, peer, limit, what)


def secrets_table(results: Results) -> Iterator[str]:
    counted = [(count, figures(results, SECRETS_BULK.name, str(count))) for count in SECRET_COUNTS]
    if not any(seen for _, seen in counted):
        return
    yield "### exeat, intercepted TLS, a large download, by number of secrets that were given out"
    yield ""
    yield "| secrets | CPU s per GB | spread |"
    yield "|---:|---:|---:|"
    for count, seen in counted:
        if seen:
            yield f"| {count} | {seen.cost:.2f} | {seen.lowest:.2f} to {seen.highest:.2f} |"
    yield ""


def intercept_tables(results: Results, effort: Effort) -> Iterator[str]:
    seen = {row for row, _ in (*results.samples, *results.failures)}
    rows = [row for row in INTERCEPT_ROWS if row.name in seen]
    if not rows:
        return
    for row in rows:
        yield from row_table(results, row, PEERS)
        yield f"Load: `{shown_command(row, effort)}`"
        yield ""
    yield INTERCEPT_NOTES
    yield ""
