"""The README's table of speed, made of bench/RESULTS.md, so that both say the same. `make bench` runs it last."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README, RESULTS = ROOT / "README.md", ROOT / "bench" / "RESULTS.md"
PEERS = ("exeat", "squid", "tinyproxy", "sandbox-runtime", "mitmproxy")
HEAD = f"| | {' | '.join(PEERS)} |\n|---|{'---:|' * len(PEERS)}\n"
TABLE = re.compile(re.escape(HEAD) + r"(?:\|.*\n)*")
# What a row is called here, and how its section begins in the results.
ROWS = (
    ("plain HTTP, connections kept, per 10,000 requests", "Plain HTTP, connections kept"),
    ("plain HTTP, new connection each, per 10,000", "Plain HTTP, a new connection"),
    ("CONNECT and TLS, new each, per 10,000", "CONNECT, TLS handshake and one request"),
    ("TLS looked into, connections kept, per 1,000", "Intercepted TLS, connections kept"),
    ("TLS looked into, new connection each, per 1,000", "Intercepted TLS, CONNECT, full handshake"),
    ("start of a command that does nothing, ms (wall)", "Starting a command"),
)
NAMES = {"srt": "sandbox-runtime"}


def figures(results: str, title: str) -> dict[str, str]:
    """The first figure of each peer in the section that begins so. In the table of starts a command is before it."""
    section = results.split(f"\n### {title}", 1)[1].split("\n### ", 1)[0]
    found = re.findall(r"^\| ([\w.-]+) \|(?: `[^`]*` \|)? ([\d.]+) \|", section, re.MULTILINE)
    return {NAMES.get(name, name): figure for name, figure in found}


def speed_table(results: str) -> str:
    rows = ""
    for label, title in ROWS:
        of_peer = figures(results, title)
        rows += f"| {label} | {' | '.join(of_peer.get(peer, '') for peer in PEERS)} |\n"
    return HEAD + rows


def main() -> None:
    table = speed_table(RESULTS.read_text())
    README.write_text(TABLE.sub(lambda _: table, README.read_text(), count=1))


if __name__ == "__main__":
    main()
