"""What `make demo` shows: an agent in a jail, one host that it may reach, and every other way out."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

GOOD = "api.good.test"
AGENT = Path(__file__).with_name("agent.py")


class Hello(http.server.BaseHTTPRequestHandler):
    """Stands for any server on the internet."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "6")
        self.end_headers()
        self.wfile.write(b"hello\n")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name for it
        """Says nothing: the table is what is to be seen."""


def show(title: str, rows: list[tuple[str, ...]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    print(f"\n{title}")
    for row in rows:
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def as_row(event: dict[str, Any]) -> tuple[str, ...]:
    where = f"{event['host']}:{event['port']}" if event["host"] else "(unreadable)"
    return event["verdict"], event["protocol"], event["method"] or "-", where, event["rule"] or "-", event["reason"]


def main() -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hello)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    port = server.server_address[1]
    with tempfile.TemporaryDirectory() as folder:
        audit = Path(folder) / "audit.jsonl"
        options = ["--allow", f"{GOOD}:{port}", "--add-host", f"{GOOD}:127.0.0.1", "--audit", str(audit)]
        program = [sys.executable, str(AGENT), str(port), str(os.getpid())]
        print(f"exeat run --allow {GOOD}:{port} -- python agent.py\n", flush=True)
        done = subprocess.run([sys.executable, "-m", "exeat", "run", *options, "--", *program], check=False)
        if done.returncode != 0:
            raise SystemExit(done.returncode)
        lines = [json.loads(line) for line in audit.read_text().splitlines()]
    server.shutdown()
    decided: list[tuple[str, ...]] = [("verdict", "protocol", "method", "host", "rule", "reason")]
    decided += [as_row(event) for event in lines if event["event"] == "decision"]
    show("Every decision, from the audit log", decided)
    allowed = [row for row in decided if row[0] == "allow"]
    print(f"\n{len(allowed)} allowed, {len(decided) - 1 - len(allowed)} denied, every one on record.")
    if {row[3] for row in allowed} != {f"{GOOD}:{port}"}:
        raise SystemExit("the demo did not go as it should: please report this")


if __name__ == "__main__":
    main()
